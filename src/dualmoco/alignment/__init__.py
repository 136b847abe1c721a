"""Two versions of a document to links between their sentences, in order, one to many."""
