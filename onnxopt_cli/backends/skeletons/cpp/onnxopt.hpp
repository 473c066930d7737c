// The protocol by which onnxopt tests my_backend: onnxopt-exec/2, in its form for single nodes.
// "onnxopt backends protocol" prints the specification. Requires C++17 and a POSIX system.
#pragma once

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <iostream>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements are little-endian: swap their bytes in Tensor"
#endif

namespace onnxopt {

// Thrown for a feature that is not implemented. Any other exception is an error.
struct Unsupported : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Thrown for an operator that is not implemented.
struct UnknownOperator : Unsupported {
    UnknownOperator(const std::string &domain, const std::string &op_type)
        : Unsupported("there is no " + op_type),
          name((domain == "ai.onnx" ? "" : domain) + ":" + op_type) {}
    std::string name;
};

// A value of JSON. A number without point and exponent is an integer.
class Json {
  public:
    using List = std::vector<Json>;
    using Object = std::vector<std::pair<std::string, Json>>;

    static Json parse(const std::string &text) {
        const char *at = text.data();
        const char *end = at + text.size();
        Json found = value(at, end, 0);
        skip(at, end);
        if (at != end) fail();
        return found;
    }

    bool is_null() const { return holds<std::nullptr_t>(); }
    bool is_object() const { return holds<Object>(); }
    bool is_list() const { return holds<List>(); }

    const std::string &text() const { return get<std::string>("a text"); }
    const List &list() const { return get<List>("a list"); }
    const Object &object() const { return get<Object>("an object"); }
    std::int64_t integer() const { return get<std::int64_t>("an integer"); }
    double number() const {
        if (holds<std::int64_t>()) return static_cast<double>(integer());
        if (holds<double>()) return get<double>("a number");
        // JSON has no NaN and no infinities: they are texts.
        if (text() == "nan") return std::numeric_limits<double>::quiet_NaN();
        const double infinity = std::numeric_limits<double>::infinity();
        if (text() == "inf") return infinity;
        return text() == "-inf" ? -infinity : get<double>("a number");
    }

    const Json *find(const std::string &field) const {
        for (const auto &[name, found] : object())
            if (name == field) return &found;
        return nullptr;
    }
    const Json &operator[](const std::string &field) const {
        if (const Json *found = find(field)) return *found;
        throw std::runtime_error("the request lacks \"" + field + "\"");
    }

  private:
    std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, List, Object> content;

    template <class T> bool holds() const { return std::holds_alternative<T>(content); }
    template <class T> const T &get(const char *expected) const {
        if (const T *found = std::get_if<T>(&content)) return *found;
        throw std::runtime_error(std::string("the request has a value of another type than ") +
                                 expected);
    }

    [[noreturn]] static void fail() { throw std::runtime_error("the request is not JSON"); }
    static void skip(const char *&at, const char *end) {
        while (at != end && std::strchr(" \t\r\n", *at) && *at) ++at;
    }
    static bool taken(const char *&at, const char *end, std::string_view word) {
        skip(at, end);
        const std::string_view rest(at, static_cast<std::size_t>(end - at));
        if (rest.substr(0, word.size()) != word) return false;
        at += word.size();
        return true;
    }

    static Json value(const char *&at, const char *end, int depth) {
        Json found;
        if (depth > 100) fail();
        if (taken(at, end, "{")) {
            Object &fields = found.content.emplace<Object>();
            while (!taken(at, end, "}")) {
                if (!fields.empty() && !taken(at, end, ",")) fail();
                std::string name = string(at, end);
                if (!taken(at, end, ":")) fail();
                fields.emplace_back(std::move(name), value(at, end, depth + 1));
            }
        } else if (taken(at, end, "[")) {
            List &items = found.content.emplace<List>();
            while (!taken(at, end, "]")) {
                if (!items.empty() && !taken(at, end, ",")) fail();
                items.push_back(value(at, end, depth + 1));
            }
        } else if (at != end && *at == '"') {
            found.content = string(at, end);
        } else if (taken(at, end, "true")) {
            found.content = true;
        } else if (taken(at, end, "false")) {
            found.content = false;
        } else if (!taken(at, end, "null")) {
            const char *start = at;
            while (at != end && *at && std::strchr("+-.0123456789eE", *at)) ++at;
            const std::string digits(start, at);
            char *rest = nullptr;
            // Both functions restore the number that Python wrote, unless the program called setlocale.
            if (digits.find_first_of(".eE") == std::string::npos)
                found.content = static_cast<std::int64_t>(std::strtoll(digits.c_str(), &rest, 10));
            else
                found.content = std::strtod(digits.c_str(), &rest);
            if (digits.empty() || *rest) fail();
        }
        return found;
    }

    static std::string string(const char *&at, const char *end) {
        if (!taken(at, end, "\"")) fail();
        std::string found;
        while (at != end && *at != '"') {
            if (*at != '\\') {
                found += *at++;
                continue;
            }
            if (++at == end) fail();
            const char letter = *at++;
            if (const char *which = std::strchr("\"\\/bfnrt", letter); which && letter)
                found += "\"\\/\b\f\n\r\t"[which - "\"\\/bfnrt"];
            else if (letter == 'u')
                append(found, at, end);
            else
                fail();
        }
        if (at == end) fail();
        ++at;
        return found;
    }

    static unsigned long unit(const char *&at, const char *end) {
        if (end - at < 4) fail();
        const std::string digits(at, at + 4);
        if (digits.find_first_not_of("0123456789abcdefABCDEF") != std::string::npos) fail();
        at += 4;
        return std::stoul(digits, nullptr, 16);
    }

    // Appends the character of an escape such as \u00e9 as UTF-8.
    static void append(std::string &text, const char *&at, const char *end) {
        unsigned long code = unit(at, end);
        if (code >= 0xd800 && code < 0xdc00 && end - at >= 6 && at[0] == '\\' && at[1] == 'u')
            code = 0x10000 + ((code - 0xd800) << 10) + (unit(at += 2, end) - 0xdc00);
        const auto add = [&](unsigned long byte) { text += static_cast<char>(byte & 0xff); };
        // A lone surrogate from 0xdc80 to 0xdcff stands for a byte of a text that is not UTF-8.
        if (code < 0x80 || (code >= 0xdc80 && code < 0xdd00)) return add(code);
        if (code < 0x800) {
            add(0xc0 | code >> 6);
        } else {
            if (code < 0x10000) {
                add(0xe0 | code >> 12);
            } else {
                add(0xf0 | code >> 18);
                add(0x80 | (code >> 12 & 0x3f));
            }
            add(0x80 | (code >> 6 & 0x3f));
        }
        add(0x80 | (code & 0x3f));
    }
};

template <class T> constexpr const char *dtype_of = nullptr;
template <> inline constexpr const char *dtype_of<float> = "float32";
template <> inline constexpr const char *dtype_of<double> = "float64";
template <> inline constexpr const char *dtype_of<std::int8_t> = "int8";
template <> inline constexpr const char *dtype_of<std::int16_t> = "int16";
template <> inline constexpr const char *dtype_of<std::int32_t> = "int32";
template <> inline constexpr const char *dtype_of<std::int64_t> = "int64";
template <> inline constexpr const char *dtype_of<std::uint8_t> = "uint8";

// A tensor. The elements of types that C++ lacks, such as float16, are available as bytes only.
struct Tensor {
    std::string dtype;
    std::vector<std::int64_t> shape;
    std::vector<char> bytes; // the elements in C order, little-endian

    template <class T> static Tensor of(std::vector<std::int64_t> shape, const std::vector<T> &elements) {
        const char *first = reinterpret_cast<const char *>(elements.data());
        return {dtype_of<T>, std::move(shape), {first, first + elements.size() * sizeof(T)}};
    }

    template <class T> bool is() const { return dtype == dtype_of<T>; }
    template <class T> std::vector<T> elements() const {
        if (!is<T>()) throw Unsupported("a tensor of " + dtype + " instead of " + dtype_of<T>);
        std::vector<T> found(bytes.size() / sizeof(T));
        if (!found.empty()) std::memcpy(found.data(), bytes.data(), bytes.size());
        return found;
    }
};

// A node to compute, with its inputs.
struct Node {
    std::string op_type;
    std::string domain; // "ai.onnx" for the default domain
    std::int64_t version = 0;
    std::string device;
    std::vector<std::optional<Tensor>> inputs; // in the operator's order; empty for an omitted input
    std::vector<std::string> outputs;          // names; empty for an output that is not used

    Json attributes;                                          // only attributes that the node sets
    std::map<std::string, std::vector<Tensor>> tensors = {}; // attributes that contain tensors

    const Tensor &input(std::size_t position) const {
        if (position < inputs.size() && inputs[position]) return *inputs[position];
        throw std::runtime_error(op_type + " lacks its input " + std::to_string(position));
    }
    // The value of a required attribute; throws if the node lacks it.
    double number(const std::string &name) const { return required(name).number(); }
    std::int64_t integer(const std::string &name) const { return required(name).integer(); }
    std::string text(const std::string &name) const { return required(name).text(); }

    // The value of an attribute, or its default. A float attribute is a float32, which a double
    // represents exactly.
    double number(const std::string &name, double otherwise) const {
        const Json *found = attributes.find(name);
        return found ? found->number() : otherwise;
    }
    std::int64_t integer(const std::string &name, std::int64_t otherwise) const {
        const Json *found = attributes.find(name);
        return found ? found->integer() : otherwise;
    }
    std::string text(const std::string &name, const std::string &otherwise) const {
        const Json *found = attributes.find(name);
        return found ? found->text() : otherwise;
    }

  private:
    const Json &required(const std::string &name) const {
        if (const Json *found = attributes.find(name)) return *found;
        throw std::runtime_error(op_type + " lacks its attribute " + name);
    }
};

// Reads values from the raw bytes of a request, in the order in which its JSON describes them.
class Values {
  public:
    explicit Values(const std::vector<char> &bytes) : payload(bytes) {}

    Tensor take(const Json &described) {
        if (!described.is_object() || !described.find("dtype")) throw Unsupported("not a tensor");
        Tensor found;
        found.dtype = described["dtype"].text();
        std::size_t count = size_of(found.dtype);
        for (const Json &length : described["shape"].list()) {
            found.shape.push_back(length.integer());
            if (!length.integer()) count = 0;
        }
        const char *first = payload.data() + position;
        const std::size_t left = payload.size() - position;
        for (const std::int64_t length : found.shape) {
            if (count && static_cast<std::size_t>(length) > left / count) too_few();
            count *= static_cast<std::size_t>(length);
        }
        if (count > left) too_few();
        found.bytes.assign(first, first + count);
        position += count;
        return found;
    }

  private:
    const std::vector<char> &payload;
    std::size_t position = 0;

    [[noreturn]] static void too_few() { throw std::runtime_error("the request has too few bytes"); }

    static std::size_t size_of(const std::string &dtype) {
        if (dtype == "string") throw Unsupported("a tensor of strings");
        if (dtype == "complex128") return 16;
        if (dtype == "complex64" || dtype == "float64" || dtype == "int64" || dtype == "uint64") return 8;
        if (dtype == "float32" || dtype == "int32" || dtype == "uint32") return 4;
        if (dtype == "float16" || dtype == "bfloat16" || dtype == "int16" || dtype == "uint16") return 2;
        return 1; // bool, int8, uint8, and all types of eight bits or fewer
    }
};

inline Node read_node(const Json &request, const std::vector<char> &payload) {
    Values values(payload);
    std::map<std::string, Tensor> inputs;
    for (const Json &input : request["inputs"].list())
        inputs[input["name"].text()] = values.take(input["value"]);
    const Json &described = request["node"];
    Node node{described["op_type"].text(),    described["domain"].text(), described["version"].integer(),
              request["device"].text(), {}, {}, described["attributes"]};
    for (const auto &[name, attribute] : node.attributes.object()) {
        if (attribute.is_object()) node.tensors[name].push_back(values.take(attribute));
        if (!attribute.is_list()) continue;
        for (const Json &item : attribute.list())
            if (item.is_object()) node.tensors[name].push_back(values.take(item));
    }
    for (const Json &name : described["inputs"].list()) {
        const auto found = inputs.find(name.text());
        if (found != inputs.end())
            node.inputs.emplace_back(found->second);
        else if (name.text().empty())
            node.inputs.emplace_back();
        else
            throw std::runtime_error("the request lacks the input " + name.text());
    }
    for (const Json &name : described["outputs"].list()) node.outputs.push_back(name.text());
    return node;
}

// Returns a text as a JSON string. Bytes that are not printable ASCII become question marks.
inline std::string quoted(const std::string &text) {
    std::string found = "\"";
    for (const char letter : text) {
        if (letter == '"' || letter == '\\') found += '\\';
        found += letter >= ' ' && letter <= '~' ? letter : '?';
    }
    return found + '"';
}

// Responds to requests until standard input ends, and returns the exit code of the program.
//
// hello: the fields of the response to "hello", without the braces; at least "name" and "version".
// run: takes a Node, and returns its used outputs in order, as a std::vector<Tensor>.
template <class Run> int serve(const std::string &hello, Run run) {
    // Standard output belongs to the protocol, so the output of libraries goes to standard error.
    std::FILE *output_file = fdopen(dup(STDOUT_FILENO), "wb");
    if (!output_file || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return 1;
    std::ios::sync_with_stdio(false);
    std::string line;
    while (std::getline(std::cin, line)) {
        const Json request = Json::parse(line);
        const Json *size = request.find("bytes");
        std::vector<char> payload(size ? static_cast<std::size_t>(size->integer()) : 0);
        std::cin.read(payload.data(), static_cast<std::streamsize>(payload.size()));
        const std::string &name = request["request"].text();
        if (name == "shutdown") break;

        std::string response;
        std::vector<Tensor> outputs;
        if (name == "hello") {
            response = "\"protocol\": \"onnxopt-exec/2\", \"form\": \"node\", " + hello;
        } else {
            try {
                if (name != "run") throw Unsupported("the request " + name);
                outputs = run(read_node(request, payload));
                std::size_t bytes = 0;
                for (const Tensor &output : outputs) {
                    response += (response.empty() ? "" : ", ") + ("{\"dtype\": " + quoted(output.dtype));
                    response += ", \"shape\": [";
                    for (std::size_t i = 0; i < output.shape.size(); ++i)
                        response += (i ? ", " : "") + std::to_string(output.shape[i]);
                    response += "]}";
                    bytes += output.bytes.size();
                }
                response = "\"bytes\": " + std::to_string(bytes) + ", \"outputs\": [" + response + "]";
            } catch (const UnknownOperator &missing) {
                response = "\"unsupported\": " + quoted(missing.what()) +
                         ", \"operator\": " + quoted(missing.name.substr(0, 200));
            } catch (const Unsupported &missing) {
                response = "\"unsupported\": " + quoted(missing.what());
            } catch (const std::exception &error) {
                outputs.clear();
                response = "\"error\": " + quoted(std::string("exception: ") + error.what());
            }
        }
        response = "{\"id\": " + std::to_string(request["id"].integer()) + ", " + response + "}\n";
        std::fwrite(response.data(), 1, response.size(), output_file);
        for (const Tensor &output : outputs)
            if (!output.bytes.empty()) std::fwrite(output.bytes.data(), 1, output.bytes.size(), output_file);
        if (std::fflush(output_file)) return 1;
    }
    return 0;
}

} // namespace onnxopt
