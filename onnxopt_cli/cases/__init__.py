"""Cases: readers and writers of case files and ONNX test directories, and selection."""
