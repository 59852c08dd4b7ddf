//! What each kind of op costs in a step, and how near that is to what the machine can do.

use std::fmt;

use ggml::OpCost;
use serde_json::{Value, json};

/// What the machine can do.
#[derive(Clone, Copy)]
pub(crate) struct Peaks {
    /// Arithmetic of a matrix product, 10⁹ a second.
    pub(crate) gflops: f64,
    /// Bytes read from memory, 10⁹ a second.
    pub(crate) gigabytes: f64,
}

impl Peaks {
    /// Measures both on so many threads.
    pub(crate) fn measure(threads: usize) -> Self {
        Self { gflops: ggml::peak_matmul_gflops(threads), gigabytes: ggml::peak_read_gigabytes(threads) }
    }

    /// Seconds that an op takes at the least: it computes at the one peak or reads and writes at the other,
    /// whichever takes longer (Williams et al., "Roofline", 2009).
    fn least_seconds(&self, cost: &OpCost) -> f64 {
        (cost.flops / (1e9 * self.gflops)).max(cost.bytes / (1e9 * self.gigabytes))
    }
}

/// A row for each kind of op.
pub(crate) struct OpTable {
    /// Over all steps.
    pub(crate) costs: Vec<OpCost>,
    /// How many steps those are.
    pub(crate) steps: f64,
    pub(crate) peaks: Peaks,
}

impl OpTable {
    /// The rows with what one step costs, the dearest first.
    fn rows(&self) -> Vec<OpCost> {
        let per_step = |cost: &OpCost| OpCost {
            seconds: cost.seconds / self.steps,
            flops: cost.flops / self.steps,
            bytes: cost.bytes / self.steps,
            ..*cost
        };
        let mut rows: Vec<_> = self.costs.iter().map(per_step).collect();
        rows.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        rows
    }

    pub(crate) fn json(&self) -> Value {
        let row = |cost: &OpCost| {
            json!({
                "op": cost.name, "count": cost.ops, "seconds": cost.seconds,
                "flops": cost.flops, "bytes": cost.bytes,
                "roofline_share": self.peaks.least_seconds(cost) / cost.seconds,
            })
        };
        self.rows().iter().map(row).collect()
    }
}

impl fmt::Display for OpTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = self.rows();
        if rows.is_empty() {
            return write!(f, "ggml computes all of the step, and does not say what its ops cost");
        }
        let all: f64 = rows.iter().map(|cost| cost.seconds).sum();
        let Peaks { gflops, gigabytes } = self.peaks;
        writeln!(f)?;
        writeln!(f, "of a step            ops          s       %  GFLOP/s     GB/s  % of the roofline")?;
        for cost in &rows {
            let OpCost { name, ops, seconds, flops, bytes } = cost;
            let (share, reached) = (100.0 * seconds / all, 100.0 * self.peaks.least_seconds(cost) / seconds);
            let (arithmetic, traffic) = (flops / seconds / 1e9, bytes / seconds / 1e9);
            writeln!(
                f,
                "{name:<18} {ops:>5} {seconds:>10.4} {share:>7.1} {arithmetic:>8.1} {traffic:>8.1} {reached:>8.0}"
            )?;
        }
        write!(f, "roofline: {gflops:.1} GFLOP/s of a matrix product, {gigabytes:.1} GB/s read from memory")
    }
}
