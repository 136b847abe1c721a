"""The paper's evaluation and more: tasks, the encoders they take, scores with signatures."""
