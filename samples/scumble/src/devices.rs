//! `scumble devices`.

use ggml::{Backend, DeviceKind};
use scumble_core::Result;
use scumble_core::memory::Budget;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let devices = ggml::devices();
    let features = ggml::cpu_features();
    let available = Budget::now(&Backend::cpu(1)?).available_bytes;
    if arguments.json {
        let report = serde_json::json!({
            "devices": devices.iter().map(|device| serde_json::json!({
                "name": device.name,
                "description": device.description,
                "kind": kind(device.kind),
                "free_bytes": device.free_bytes,
                "total_bytes": device.total_bytes,
            })).collect::<Vec<_>>(),
            "cpu_features": features.iter().map(|(name, found, used)| serde_json::json!({
                "name": name, "found": found, "used": used,
            })).collect::<Vec<_>>(),
            "available_bytes": available,
        });
        println!("{report}");
        return Ok(());
    }
    for device in devices {
        let gigabytes = device.total_bytes as f64 / 1e9;
        println!("{:<10} {} ({}), {gigabytes:.1} GB", device.name, device.description, kind(device.kind));
    }
    let list = |wanted: fn(bool, bool) -> bool| -> String {
        features.iter().filter(|(_, found, used)| wanted(*found, *used)).map(|(name, ..)| *name).collect::<Vec<_>>().join(" ")
    };
    println!("CPU features found: {}", list(|found, _| found));
    println!("CPU features used:  {}", list(|_, used| used));
    println!("memory available:   {:.1} GB", available as f64 / 1e9);
    Ok(())
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::IntegratedGpu => "integrated gpu",
        DeviceKind::Other => "other",
    }
}
