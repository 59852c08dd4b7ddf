//! Standard normal numbers from a seed, in the order in which other tools draw them.
//!
//! The same seed gives the same bits on every platform: the generators use integers, additions,
//! multiplications, square roots and fused multiply-adds, which IEEE 754 defines to the last bit,
//! and the crate `libm` for the rest, never the platform's own mathematics library.

mod philox;
mod torch;

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use self::philox::Philox;
use self::torch::Torch;
use crate::error::Error;

/// Which generator makes the noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RngKind {
    /// Philox 4×32-10 with one counter a number, as `torch.randn` makes them on a CUDA device.
    #[default]
    Philox,
    /// The Mersenne Twister of `torch.randn` on the CPU, bit for bit.
    Torch,
}

impl RngKind {
    /// All of them, in the order in which a list shows them.
    pub const ALL: [Self; 2] = [Self::Philox, Self::Torch];

    /// The name that [`FromStr`] reads and [`fmt::Display`] writes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Philox => "philox",
            Self::Torch => "torch",
        }
    }
}

impl fmt::Display for RngKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for RngKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        super::parse_name("rng", text, &Self::ALL, Self::name)
    }
}

/// A generator and its state.
#[derive(Debug, Clone)]
pub struct Rng(Generator);

#[derive(Debug, Clone)]
enum Generator {
    Philox(Philox),
    Torch(Box<Torch>),
}

impl Rng {
    /// A generator at the start of the sequence of `seed`.
    pub fn new(kind: RngKind, seed: u64) -> Self {
        Self(match kind {
            RngKind::Philox => Generator::Philox(Philox::new(seed)),
            RngKind::Torch => Generator::Torch(Box::new(Torch::new(seed))),
        })
    }

    /// The next `len` standard normal numbers, as one tensor: how the numbers are grouped into
    /// calls is part of the sequence in both generators, so ask for whole tensors.
    pub fn normal(&mut self, len: usize) -> Vec<f32> {
        match &mut self.0 {
            Generator::Philox(philox) => philox.normal(len),
            Generator::Torch(torch) => torch.normal(len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for kind in RngKind::ALL {
            assert_eq!(kind.to_string().parse::<RngKind>().unwrap(), kind);
        }
        assert!("mt19937".parse::<RngKind>().is_err());
    }

    #[test]
    fn the_moments_are_those_of_a_standard_normal() {
        for kind in RngKind::ALL {
            let values = Rng::new(kind, 7).normal(100_000);
            let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / 1e5;
            let square = values.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / 1e5;
            assert!(mean.abs() < 0.015, "{kind}: mean {mean}");
            assert!((square - 1.0).abs() < 0.02, "{kind}: mean square {square}");
        }
    }
}
