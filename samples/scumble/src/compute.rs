//! Where a command computes, and with what.

use clap::Args;
use ggml::Backend;
use ggml::kernels::Isa;
use scumble_core::{Error, Result};

/// The flags that say it.
#[derive(Args)]
pub(crate) struct Compute {
    /// Threads; 0 is one per core
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    threads: usize,
    /// The device to compute on, as `scumble devices` names it
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// The CPU's kernels: auto, stock (ggml's own), or those of an instruction set: baseline, avx2, …
    #[arg(long, default_value = "auto", value_name = "NAME")]
    kernels: String,
}

impl Compute {
    /// Opens the device, or the CPU.
    pub(crate) fn backend(&self) -> Result<Backend> {
        let (backend, field) = match &self.device {
            Some(name) => (Backend::open(name, self.threads), "device"),
            None => (Backend::cpu_with(self.threads, kernels(&self.kernels)?), "threads"),
        };
        backend.map_err(|error| match error {
            ggml::Error::Backend(reason) => Error::invalid(field, reason),
            error => error.into(),
        })
    }
}

/// Those of an instruction set, or none but ggml's.
fn kernels(name: &str) -> Result<Option<Isa>> {
    let spelled = |isa: &Isa| isa.to_string().to_ascii_lowercase().replace('-', "");
    match name {
        "auto" => Ok(Some(Isa::best())),
        "stock" => Ok(None),
        _ => Isa::available().into_iter().find(|isa| spelled(isa) == name).map(Some).ok_or_else(|| {
            let names: Vec<_> = Isa::available().iter().map(spelled).collect();
            Error::invalid("kernels", format!("{name:?} is not one of auto, stock, {}", names.join(", ")))
        }),
    }
}
