//! ggml behind a small safe layer.
//!
//! ggml answers a wrong shape, a wrong type or an exhausted pool with `abort()`, which would take a
//! host's editor down. So everything is checked here first: an op that does not fit makes its graph
//! keep the error and hands back a poisoned tensor, and [`Builder::build`] returns that error.
//!
//! **Order of dimensions.** Everything in this crate is in ggml's own order, fastest first:
//! a picture is `[w, h, c, n]`, tokens are `[width, length, n]`, a matrix that maps `k` inputs to
//! `m` outputs is `[k, m]`. That is the reverse of how PyTorch and safetensors write a shape.
//!
//! ```
//! # fn main() -> Result<(), ggml::Error> {
//! let backend = ggml::Backend::cpu(1)?;
//! let builder = ggml::Builder::new(&backend)?;
//! let (x, x_slot) = builder.input(ggml::Dtype::F32, [3, 1, 1, 1]);
//! let y_slot = builder.output(x.scale(2.0, 1.0));
//! let mut graph = builder.build(&backend, usize::MAX)?;
//! graph.write(x_slot, &[1.0, 2.0, 3.0])?;
//! graph.compute(&backend, &|| false)?;
//! assert_eq!(graph.read(y_slot)?, [3.0, 5.0, 7.0]);
//! # Ok(())
//! # }
//! ```
//!
//! Every `unsafe` of the engine below its C ABI is in this crate.

#[allow(missing_docs)]
mod sys;

pub mod abort;
mod allocator;
mod backend;
mod builder;
mod context;
mod cpu;
mod custom;
mod device;
mod dtype;
mod error;
mod executor;
mod flops;
mod graph;
pub mod kernels;
mod log;
mod ops;
mod picture;
mod pool;
mod roofline;
#[cfg(feature = "rpc")]
pub mod rpc;
mod steady;
mod storage;
mod tensor;

pub use backend::Backend;
pub use builder::Builder;
pub use cpu::cpu_features;
pub use device::{Device, DeviceKind, devices};
pub use dtype::Dtype;
pub use error::{Error, Result};
pub use executor::{Next, OpCost, SLICE};
pub use graph::{Graph, Slot};
pub use kernels::Activation;
pub use picture::{Addend, Picture, Window};
pub use roofline::{peak_matmul_gflops, peak_read_gigabytes};
pub use storage::{MapKind, Storage, Weight};
pub use tensor::Tensor;

/// Sizes of a tensor, fastest dimension first; unused dimensions are 1.
pub type Shape = [usize; 4];
