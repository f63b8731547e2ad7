"""A rewrite rule of your own, tried on a graph. It is also a plugin for the command line:

graphc opt models/digits_cnn.onnx -o small.onnx --plugin examples/own_rule.py --explain log-of-exp
"""

import graphc
from graphc.passes import Context, P, rule, run_pipeline, var


@rule("log-of-exp", P.Log(P.Exp(var("x")).only_use()))
def log_of_exp(rw, exp, log, x):
    """log(exp(x)) == x"""
    return x


GRAPH = """
graph @example(%x: f32[4]) -> f32[4] phase typed {
  %e = Exp(%x) : f32[4]
  %l = Log(%e) : f32[4]
  %y = Neg(%l) : f32[4]
  return %y
}
"""

if __name__ == "__main__":
    graph, context = graphc.parse(GRAPH), Context()
    run_pipeline(graph, "log-of-exp, dce", context)
    print(context.explain("log-of-exp"))
    print([op.name for op in graph.ops])
    assert [op.name for op in graph.ops] == ["Neg"]
