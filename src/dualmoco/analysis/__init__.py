"""Cost estimates of training runs, and studies: one recipe under several settings and seeds, scored and compared."""
