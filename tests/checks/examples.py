"""For each rule the smallest model that fires it and its mended twin, in the ONNX text of the fusion tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from tests.graphs import from_text, named
from tests.targets.tensorrt_models import net

RTX, TRT = "tensorrt-rtx:sm89", "tensorrt:sm80"
SHAPE = "float[1, 32, 8, 8]"
SAME = "<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>"
W = "Weight<32, 32, 3, 3> ()"


@dataclasses.dataclass(frozen=True)
class Example:
    """``faulty`` fires the rule for ``target``, ``mended`` does not; ``compiles``: engines are needed."""

    faulty: Callable[[], ir.Model]
    mended: Callable[[], ir.Model]
    target: str = TRT
    compiles: bool = False


def conv(
    body: str, out: str = SHAPE, inputs: str = f"{SHAPE} x", constants: str = "", **more: object
) -> ir.Model:
    """A graph of one input and one output."""
    return net(f"({inputs}) => ({out} y) {constants}", body, **more)  # type: ignore[arg-type]


def set_constant(model: ir.Model, name: str, array: np.ndarray) -> ir.Model:
    """Give the initializer another value, and its readers' outputs the type that follows."""
    value = model.graph.initializers[name]
    value.const_value = ir.Tensor(array, name=name)
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(value.const_value.dtype)
    return model


def quantized_conv() -> ir.Model:
    """One convolution between an input and an output, data and weight quantized."""
    return conv(f"xd = Pair<0.1>(x)\nw = {W}\ny = Conv {SAME} (xd, w)")


def per_tensor_conv() -> ir.Model:
    """The same with one weight scale."""
    return set_constant(quantized_conv(), "w_scale", np.float32([0.01]).reshape(()))


def big_convs(count: int) -> ir.Model:
    """Convolutions large enough that INT8 gains."""
    lines = ["d0 = Pair<0.1>(x)"]
    for i in range(count):
        lines += [f"w{i} = Weight<256, 256, 3, 3> ()", f"c{i} = Conv {SAME} (d{i}, w{i})"]
        lines += [f"r{i} = Relu(c{i})", f"d{i + 1} = Pair<0.1>(r{i})"]
    big = "float[8, 256, 56, 56]"
    body = "\n".join([*lines[:-1], f"y = Identity(r{count - 1})"])
    return conv(body, out=big, inputs=f"{big} x")


def half_quantized() -> ir.Model:
    """The weight is quantized, the data is not."""
    return conv(f"w = {W}\ny = Conv {SAME} (x, w)")


def residual(identity: str, edge: str = "c2", extra: str = "") -> ir.Model:
    """K1, K7: Conv-Relu-Conv and a shortcut."""
    return conv(
        f"""
        x0 = Relu(x)
        xd = Pair<0.1>(x0)
        w1 = {W}
        c1 = Conv {SAME} (xd, w1)
        r1 = Relu(c1)
        rd = Pair<0.2>(r1)
        w2 = {W}
        c2 = Conv {SAME} (rd, w2)
        {extra}
        s = Add({edge}, {identity})
        r2 = Relu(s)
        od = Pair<0.3>(r2)
        w3 = {W}
        y = Conv {SAME} (od, w3)"""
    )


def concat(second: str) -> ir.Model:
    """Two branches joined in front of a quantized convolution."""
    return conv(
        f"""
        a0 = Relu(x)
        a = Pair<0.1>(a0)
        b0 = Sigmoid(x)
        b1 = Pair<0.1>(b0)
        j = Concat <axis = 1> (a, {second})
        jd = Pair<0.1>(j)
        w = Weight<32, 64, 3, 3> ()
        y = Conv {SAME} (jd, w)"""
    )


def normalization(paired: bool) -> ir.Model:
    """LayerNormalization in front of a linear layer."""
    return net(
        "(float[1, 16, 64] x) => (float[1, 16, 64] y)",
        f"""
        g = Zeros<64> ()
        {"xd = Pair<0.1>(x)" if paired else "xd = Identity(x)"}
        n = LayerNormalization <axis = -1> (xd, g)
        nd = Pair<0.1>(n)
        w = Weight<64, 64> ()
        y = MatMul(nd, w)""",
    )


def attention(pairs: str) -> ir.Model:
    """``softmax(q k) v`` with pairs on the tensors named in ``pairs`` (of q, k, p, v, and y the result)."""

    def read(tensor: str) -> tuple[str, str]:
        if tensor in pairs:
            return f"{tensor}d = Pair<0.1>({tensor})", f"{tensor}d"
        return "", tensor

    lines = {tensor: read(tensor) for tensor in "qkpv"}
    return net(
        "(float[1, 4, 64, 64] q, float[1, 4, 64, 64] k, float[1, 4, 64, 64] v)"
        " => (float[1, 4, 64, 64] y)",
        f"""
        {lines["q"][0]}
        {lines["k"][0]}
        {lines["v"][0]}
        s = MatMul({lines["q"][1]}, {lines["k"][1]})
        p = Softmax <axis = -1> (s)
        {lines["p"][0]}
        {"o" if "y" in pairs else "y"} = MatMul({lines["p"][1]}, {lines["v"][1]})
        {"z = Pair<0.1>(o)" if "y" in pairs else ""}
        {"y = Relu(z)" if "y" in pairs else ""}""",
        dtype="fp8",
    )


def pooled(behind: str) -> ir.Model:
    """MaxPool between two pairs."""
    return conv(
        f"""
        xd = Pair<0.1>(x)
        p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (xd)
        pd = Pair<{behind}>(p)
        w = {W}
        y = Conv {SAME} (pd, w)"""
    )


def two_linears(second: float) -> ir.Model:
    """Two products of one input with one weight scale each."""
    model = net(
        "(float[1, 16, 64] x) => (float[1, 16, 64] y)",
        """
        xd = Pair<0.1>(x)
        w1 = Weight<64, 64> ()
        w2 = Weight<64, 64> ()
        a = MatMul(xd, w1)
        b = MatMul(xd, w2)
        y = Add(a, b)""",
    )
    set_constant(model, "w1_scale", np.array(0.01, np.float32))
    return set_constant(model, "w2_scale", np.array(second, np.float32))


def depthwise(group: int) -> ir.Model:
    """A quantized convolution with ``group`` groups over 32 channels."""
    return conv(
        f"""
        xd = Pair<0.1>(x)
        w = Weight<32, {32 // group}, 3, 3> ()
        y = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = {group}> (xd, w)"""
    )


def stem(channels: int) -> ir.Model:
    """An FP8 convolution over few channels."""
    body = f"xd = Pair<0.1>(x)\nw = Weight<32, {channels}, 3, 3> ()\ny = Conv {SAME} (xd, w)"
    return conv(body, inputs=f"float[1, {channels}, 8, 8] x", dtype="fp8")


def shared(second: str) -> ir.Model:
    """K15: one tensor, two convolutions, a pair each."""
    return conv(
        f"""
        a = Pair<0.1>(x)
        b = Pair<{second}>(x)
        w1 = {W}
        w2 = {W}
        c1 = Conv {SAME} (a, w1)
        c2 = Conv {SAME} (b, w2)
        y = Concat <axis = 1> (c1, c2)""",
        out="float[1, 64, 8, 8]",
    )


def half_scale() -> ir.Model:
    """K67: a Half scale beside a Float tensor."""
    return set_constant(quantized_conv(), "xd_scale", np.array(0.1, np.float16))


def zero_point(value: int) -> ir.Model:
    """K57: a zero point that is not 0."""
    return set_constant(quantized_conv(), "xd_zero", np.array(value, np.int8))


def biased(stored: bool) -> ir.Model:
    """K51: an INT32 bias behind a DequantizeLinear, or a float one."""
    bias = "b = DequantizeLinear(bq, bs)" if stored else ""
    integers = ", ".join("1" for _ in range(32))
    constants = (
        f"<int32[32] bq = {{{integers}}}, float bs = {{0.001}}>"
        if stored
        else f"<float[32] b = {{{integers}}}>"
    )
    body = f"xd = Pair<0.1>(x)\nw = {W}\n{bias}\ny = Conv {SAME} (xd, w, b)"
    return conv(body, constants=constants)


def integer_matmul() -> ir.Model:
    """A product of integers."""
    return named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 21]>
            net (uint8[4, 8] x) => (int32[4, 8] y) { y = MatMulInteger(x, w) }""",
            w=np.ones((8, 8), np.int8),
        )
    )


def private() -> ir.Model:
    """K71: FP8 in TensorRT's private operators."""
    return named(
        from_text(
            """<ir_version: 10, opset_import: ["" : 17, "trt" : 1]>
            net (float[1, 8] x) => (float[1, 8] y) <float s = {0.1}> {
              q = trt.TRT_FP8QuantizeLinear(x, s)
              y = trt.TRT_FP8DequantizeLinear(q, s)
            }"""
        )
    )


def written_out(rounds: str) -> ir.Model:
    """K63: a quantizer in float operators."""
    return named(
        from_text(
            f"""<ir_version: 10, opset_import: ["" : 21]>
            net (float[1, 8] x) => (float[1, 8] y)
            <float s = {{0.1}}, float low = {{-128}}, float high = {{127}}> {{
              a = Div(x, s)
              b = {rounds}(a)
              c = Clip(b, low, high)
              y = Mul(c, s)
            }}"""
        )
    )


def scaled(scale: float) -> ir.Model:
    """A quantized convolution with another data scale."""
    return set_constant(quantized_conv(), "xd_scale", np.array(scale, np.float32))


def axis(number: int) -> ir.Model:
    """Weight scales along an axis of a square weight."""
    body = f"xd = Pair<0.1>(x)\nw = {W}\ny = Conv {SAME} (xd, w)"
    model = conv(body)
    for node in model.graph:
        if node.op_type == "DequantizeLinear" and node.outputs[0].name == "w":
            node.attributes["axis"] = ir.AttrInt64("axis", number)
    return model


def scales(count: int) -> ir.Model:
    """A weight with ``count`` scales for its 32 channels."""
    return set_constant(quantized_conv(), "w_scale", np.full(count, 0.01, np.float32))


def stored_float() -> ir.Model:
    """The weight is quantized, and the file stores it in float."""
    return conv(
        f"""
        xd = Pair<0.1>(x)
        wf = Zeros<32, 32, 3, 3> ()
        w = Pair<0.01>(wf)
        y = Conv {SAME} (xd, w)"""
    )


def coverage(second: bool) -> ir.Model:
    """Two equal convolutions, the second quantized or forgotten."""
    pair, weight = (
        ("rd = Pair<0.1>(r)", W) if second else ("rd = Identity(r)", "Zeros<32, 32, 3, 3> ()")
    )
    return conv(
        f"""
        xd = Pair<0.1>(x)
        w1 = {W}
        c = Conv {SAME} (xd, w1)
        r = Relu(c)
        {pair}
        w2 = {weight}
        y = Conv {SAME} (rd, w2)"""
    )


def opset(number: int) -> ir.Model:
    """K73: scales a channel in a file of an old opset."""
    return conv(f"xd = Pair<0.1>(x)\nw = {W}\ny = Conv {SAME} (xd, w)", opset=number)


def rounded_for_nothing() -> ir.Model:
    """Pairs between operators that compute in float."""
    return conv("a = Sigmoid(x)\nb = Pair<0.1>(a)\nc = Tanh(b)\nd = Pair<0.2>(c)\ny = Sigmoid(d)")


def fp8_conv() -> ir.Model:
    """A quantized convolution in FP8."""
    body = f"xd = Pair<0.1>(x)\nw = {W}\ny = Conv {SAME} (xd, w)"
    return conv(body, dtype="fp8")


EXAMPLES: dict[str, Example] = {
    "FQ101": Example(quantized_conv, lambda: big_convs(4), compiles=True),
    "FQ102": Example(half_quantized, quantized_conv),
    "FQ103": Example(lambda: residual("x0"), lambda: residual("xd")),
    "FQ104": Example(lambda: concat("b0"), lambda: concat("b1")),
    "FQ105": Example(lambda: normalization(True), lambda: normalization(False)),
    "FQ106": Example(lambda: attention("qkv"), lambda: attention("qkpv"), RTX),
    "FQ107": Example(lambda: pooled("0.2"), lambda: pooled("0.1")),
    "FQ108": Example(lambda: two_linears(0.02), lambda: two_linears(0.01), RTX),
    "FQ109": Example(lambda: depthwise(32), lambda: depthwise(1), RTX),
    "FQ110": Example(lambda: stem(3), lambda: stem(32), RTX),
    "FQ111": Example(quantized_conv, per_tensor_conv, RTX),
    "FQ112": Example(lambda: residual("xd", "ce", "ce = Pair<0.4>(c2)"), lambda: residual("xd")),
    "FQ113": Example(lambda: shared("0.2"), lambda: shared("0.1")),
    "FQ201": Example(half_scale, quantized_conv),
    "FQ202": Example(lambda: zero_point(3), lambda: zero_point(0)),
    "FQ203": Example(lambda: biased(True), lambda: biased(False)),
    "FQ204": Example(integer_matmul, quantized_conv),
    "FQ205": Example(lambda: opset(12), lambda: opset(13)),
    "FQ206": Example(fp8_conv, quantized_conv),
    "FQ207": Example(private, fp8_conv, RTX),
    "FQ208": Example(lambda: written_out("Round"), lambda: written_out("Floor")),
    "FQ301": Example(lambda: scaled(0.0), lambda: scaled(0.1)),
    "FQ302": Example(lambda: scaled(1e-9), lambda: scaled(1e-6)),
    "FQ303": Example(lambda: axis(1), lambda: axis(0)),
    "FQ304": Example(lambda: scales(3), lambda: scales(32)),
    "FQ305": Example(stored_float, quantized_conv),
    "FQ401": Example(lambda: coverage(False), lambda: coverage(True)),
    "FQ501": Example(rounded_for_nothing, lambda: big_convs(4), compiles=True),
}
