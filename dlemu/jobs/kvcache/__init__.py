"""KV-cache offload of language-model serving: blocks of attention keys and values, written once and read by prefix."""
