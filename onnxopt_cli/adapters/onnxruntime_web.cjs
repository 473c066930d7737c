// Runs models with ONNX Runtime Web's WebAssembly, in the protocol of `onnxopt backends protocol`.
"use strict";
const fs = require("node:fs");
const ort = require("onnxruntime-web");

// Standard output is for responses only; the library may print to it.
for (const method of ["log", "info", "debug"]) console[method] = console.error;
ort.env.wasm.numThreads = 1;

const ELEMENT_TYPES = {
  float32: Float32Array,
  float64: Float64Array,
  float16: Uint16Array, // the bits
  int8: Int8Array,
  int16: Int16Array,
  int32: Int32Array,
  int64: BigInt64Array,
  uint8: Uint8Array,
  uint16: Uint16Array,
  uint32: Uint32Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};
const UNSUPPORTED = [
  "is not a registered function/op",
  "No Op registered for",
  "Could not find an implementation for",
  "Unsupported model IR version",
  "Opset \\d+ is under development",
  "MLDataType for: \\S+ is not currently registered or supported",
];

function readBytes(buffer, offset) {
  for (;;) {
    try {
      return fs.readSync(0, buffer, offset, buffer.length - offset);
    } catch (error) {
      if (error.code === "EOF") return 0;
      if (error.code !== "EAGAIN") throw error;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1); // sleeps for 1 ms
    }
  }
}

let ahead = Buffer.alloc(0);

// Returns the next request and the raw bytes after it; null at the end of the input.
function readRequest() {
  const chunk = Buffer.alloc(1 << 16);
  while (!ahead.includes(10)) {
    const count = readBytes(chunk, 0);
    if (!count) return null;
    ahead = Buffer.concat([ahead, chunk.subarray(0, count)]);
  }
  const end = ahead.indexOf(10);
  const request = JSON.parse(ahead.toString("utf8", 0, end));
  const payload = Buffer.alloc(request.bytes ?? 0);
  let filled = ahead.copy(payload, 0, end + 1);
  ahead = ahead.subarray(end + 1 + filled);
  while (filled < payload.length) {
    const count = readBytes(payload, filled);
    if (!count) return null;
    filled += count;
  }
  return { request, payload };
}

function writeAll(buffer) {
  for (let written = 0; written < buffer.length; ) {
    try {
      written += fs.writeSync(1, buffer, written);
    } catch (error) {
      if (error.code !== "EAGAIN") throw error;
    }
  }
}

function respond(id, fields, buffers = []) {
  const bytes = buffers.reduce((sum, buffer) => sum + buffer.length, 0);
  const line = JSON.stringify({ id, ...(bytes ? { bytes } : {}), ...fields });
  writeAll(Buffer.concat([Buffer.from(`${line}\n`), ...buffers]));
}

function toTensor({ dtype, shape, data }, payload, offset) {
  if (dtype === "string") return { tensor: new ort.Tensor("string", data, shape), size: 0 };
  const count = shape.reduce((product, length) => product * length, 1);
  const ElementArray = ELEMENT_TYPES[dtype];
  const size = count * ElementArray.BYTES_PER_ELEMENT;
  const elements = new ElementArray(Uint8Array.from(payload.subarray(offset, offset + size)).buffer);
  return { tensor: new ort.Tensor(dtype, elements, shape), size };
}

async function run(request, payload) {
  const values = request.inputs.map(({ value }) => value);
  if (![...request.outputs, ...values].every((value) => value?.dtype))
    return { fields: { unsupported: "only tensors are exchanged with ONNX Runtime Web" } };
  const feeds = {};
  let offset = request.model;
  for (const { name, value } of request.inputs) {
    const { tensor, size } = toTensor(value, payload, offset);
    feeds[name] = tensor;
    offset += size;
  }
  const options = { executionProviders: ["wasm"], logSeverityLevel: 4 };
  const session = await ort.InferenceSession.create(payload.subarray(0, request.model), options);
  try {
    const results = await session.run(feeds);
    const tensors = request.outputs.map(({ name }) => results[name]);
    const outputs = tensors.map(({ type, dims, data }) =>
      type === "string"
        ? { dtype: type, shape: [...dims], data: [...data] }
        : { dtype: type, shape: [...dims] },
    );
    const buffers = tensors
      .filter(({ type }) => type !== "string")
      .map(({ data }) => Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    return { fields: { outputs }, buffers };
  } finally {
    await session.release();
  }
}

async function main() {
  for (let received; (received = readRequest()); ) {
    const { request, payload } = received;
    if (request.request === "shutdown") return;
    if (request.request === "hello") {
      respond(request.id, {
        protocol: "onnxopt-exec/2",
        name: "onnxruntime-web",
        version: ort.env.versions.web,
        dtypes: [...Object.keys(ELEMENT_TYPES), "string"],
        devices: ["CPU"],
        unsupported: UNSUPPORTED.join("|"),
      });
      continue;
    }
    try {
      const { fields, buffers } = await run(request, payload);
      respond(request.id, fields, buffers);
    } catch (error) {
      // The module's memory may be damaged after a trap, such as an access out of bounds.
      if (error instanceof WebAssembly.RuntimeError) {
        console.error(error.stack);
        process.abort();
      }
      respond(request.id, { error: String(error?.message || error) });
    }
  }
}

main().then(() => process.exit(0));
