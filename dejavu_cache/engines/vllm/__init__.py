"""vLLM: its plug-in, and an attention backend."""
