//! How much arithmetic a graph holds.

use crate::executor::Executor;
use crate::{Graph, sys};

impl Graph {
    /// Floating-point operations of one run in products, convolutions and attention, a multiplication
    /// and an addition counted as two. Everything else is small beside them.
    pub fn flops(&self) -> f64 {
        // SAFETY: the graph is alive, and so are its nodes and what they read.
        let of_ggml: f64 = unsafe {
            let nodes = sys::ggml_graph_n_nodes(self.graph.as_ptr());
            (0..nodes).map(|i| node_flops(&*sys::ggml_graph_node(self.graph.as_ptr(), i))).sum()
        };
        of_ggml + self.executor.as_ref().map_or(0.0, Executor::flops)
    }
}

/// # Safety
/// The node and its operands are alive.
unsafe fn node_flops(node: &sys::ggml_tensor) -> f64 {
    let elements = |sizes: &[i64]| sizes.iter().map(|&size| size as f64).product::<f64>();
    // SAFETY: these ops have at least two operands, and the caller's contract.
    let operand = |i: usize| unsafe { &*node.src[i] };
    match node.op {
        sys::GGML_OP_MUL_MAT => 2.0 * elements(&node.ne) * operand(0).ne[0] as f64,
        sys::GGML_OP_CONV_2D => 2.0 * elements(&node.ne) * elements(&operand(0).ne[..3]),
        sys::GGML_OP_FLASH_ATTN_EXT => {
            let (q, k) = (operand(0), operand(1));
            // The scores, and their product with the values.
            2.0 * elements(&q.ne[1..]) * k.ne[1] as f64 * (q.ne[0] + node.ne[0]) as f64
        }
        _ => 0.0,
    }
}
