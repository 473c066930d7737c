// my_backend as a command that onnxopt can test. Put calls of your implementation here.
#include "onnxopt.hpp"

using namespace onnxopt;

// The versions and element types that my_backend supports. onnxopt counts all other nodes as
// unsupported, and does not send them.
static const char *const hello = R"("name": "my_backend", "version": "0.1.0", )"
                                 R"("domains": {"ai.onnx": [13, 21], "ai.onnx.preview.training": [1, 1]}, )"
                                 R"("dtypes": ["float32", "float64", "int64"], "devices": ["CPU"])";

template <class T> static Tensor leaky_relu(const Node &node) {
    const Tensor &x = node.input(0);
    const T alpha = static_cast<T>(node.number("alpha", 0.01f));
    std::vector<T> y = x.elements<T>();
    for (T &element : y)
        if (element < 0) element *= alpha;
    return Tensor::of(x.shape, y);
}

// Returns the outputs that the node names, in order, with the types and shapes that the operator defines. Throws
// UnknownOperator or Unsupported for features that are not implemented. Any other exception means that the node or its
// inputs are invalid, or that the computation failed.
static std::vector<Tensor> run(const Node &node) {
    if (node.domain == "ai.onnx" && node.op_type == "LeakyRelu")
        return {node.input(0).is<double>() ? leaky_relu<double>(node) : leaky_relu<float>(node)};
    throw UnknownOperator(node.domain, node.op_type);
}

int main() { return serve(hello, run); }
