//! From a checkpoint's tensors to weights on a device, in two passes: layers declare what they
//! need, then everything is allocated at once and read straight into place.

use std::cell::RefCell;
use std::fmt::Display;

use ggml::{Backend, Dtype, MapKind, Storage, Weight};

use super::reading::{Read, read_all};
use crate::error::Result;
use crate::memory::Budget;
use crate::weights::{Entry, Target, Weights};

/// The weights that layers asked for, and where they come from.
#[derive(Default)]
pub struct Plan {
    storage: Storage,
    reads: RefCell<Vec<Read>>,
}

/// Watches over a load.
pub struct LoadControl<'a> {
    /// Asked between chunks; `true` cancels.
    pub stop: &'a dyn Fn() -> bool,
    /// Told the bytes read so far and the bytes in all.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

impl Plan {
    /// Nothing asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes of the files that [`Plan::load`] will read.
    pub fn file_bytes(&self) -> u64 {
        self.reads.borrow().iter().map(|(entry, ..)| entry.bytes()).sum()
    }

    /// Number of values over all weights.
    pub fn parameters(&self) -> u64 {
        self.reads.borrow().iter().map(|(.., weight)| weight.shape().iter().product::<usize>() as u64).sum()
    }

    /// Allocates every weight on `backend` and reads it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] before anything is allocated when the weights don't fit, [`Error::Cancelled`], and
    /// what reading a file can give.
    ///
    /// [`Error::OutOfMemory`]: crate::Error::OutOfMemory
    /// [`Error::Cancelled`]: crate::Error::Cancelled
    pub fn load(self, backend: &Backend, control: &mut LoadControl<'_>) -> Result<Storage> {
        Budget::now(backend).check("the model", self.storage.bytes_needed(backend) as u64)?;
        self.storage.allocate(backend)?;
        read_all(&self.reads.into_inner(), backend.threads(), control)?;
        Ok(self.storage)
    }
}

/// A place in a checkpoint: what a layer is loaded from.
#[derive(Clone)]
pub struct Params<'a> {
    weights: Weights,
    plan: &'a Plan,
}

impl<'a> Params<'a> {
    /// The place `weights`, whose tensors go into `plan`.
    pub fn new(weights: Weights, plan: &'a Plan) -> Self {
        Self { weights, plan }
    }

    /// The place below, as `cd` steps into a folder.
    pub fn at(&self, segment: impl Display) -> Self {
        Self { weights: self.weights.at(segment), plan: self.plan }
    }

    /// The cursor behind it.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// A table of `shape`, slowest dimension first, in the type in which it is stored (or the nearest
    /// that holds it exactly).
    pub fn table(&self, name: &str, shape: &[usize]) -> Result<Weight> {
        let entry = self.weights.entry(name, shape)?.clone();
        let target = entry.natural();
        self.plan_read(entry, target, shape, None)
    }

    /// The matrix of a linear map, `[out, in]`, or the kernel of a convolution, `[out, in, h, w]`, in the
    /// type in which it is stored (or the nearest that holds it exactly).
    pub fn map(&self, name: &str, shape: &[usize]) -> Result<Weight> {
        let kind = if shape.len() == 2 { MapKind::Linear } else { MapKind::Convolution };
        let entry = self.weights.entry(name, shape)?.clone();
        let target = entry.natural_of_map();
        self.plan_read(entry, target, shape, Some(kind))
    }

    /// A vector of `length` values, always F32.
    pub fn vector(&self, name: &str, length: usize) -> Result<Weight> {
        let entry = self.weights.entry(name, &[length])?.clone();
        self.plan_read(entry, Target::F32, &[length], None)
    }

    fn plan_read(&self, entry: Entry, target: Target, shape: &[usize], map: Option<MapKind>) -> Result<Weight> {
        let mut ne = [1; 4];
        for (size, &found) in ne.iter_mut().zip(shape.iter().rev()) {
            *size = found;
        }
        let dtype = match target {
            Target::F32 => Dtype::F32,
            Target::F16 => Dtype::F16,
            Target::BF16 => Dtype::BF16,
            Target::I32 => Dtype::I32,
        };
        let weight = match map {
            Some(kind) => self.plan.storage.add_map(kind, dtype, ne)?,
            None => self.plan.storage.add(dtype, ne)?,
        };
        self.plan.reads.borrow_mut().push((entry, target, weight.clone()));
        Ok(weight)
    }
}
