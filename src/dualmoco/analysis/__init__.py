"""What a training run will cost, and studies: one recipe under several settings and seeds, scored and compared."""
