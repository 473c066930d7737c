"""ONNX test directories, and the corpora of the installed onnx."""
