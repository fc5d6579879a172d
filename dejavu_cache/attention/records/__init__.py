"""Records that come with the package, a read-only file store in this folder: who has the GPU starts tuned."""
