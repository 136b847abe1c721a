"""Ways to run one model: PyTorch, a table of token vectors, ONNX; each gives the model's own vectors."""
