//! `scumble devices`.

use ggml::DeviceKind;
use scumble_core::Result;
use scumble_core::memory::Budget;

use crate::output::print;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    let devices = ggml::devices();
    let features = ggml::cpu_features();
    let available = Budget::of_host().available_bytes;
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
        return print(report);
    }
    let mut text = String::new();
    for device in devices {
        let gigabytes = device.total_bytes as f64 / 1e9;
        text += &format!("{:<10} {} ({}), {gigabytes:.1} GB\n", device.name, device.description, kind(device.kind));
    }
    let list = |wanted: fn(bool, bool) -> bool| -> String {
        features
            .iter()
            .filter(|(_, found, used)| wanted(*found, *used))
            .map(|(name, ..)| *name)
            .collect::<Vec<_>>()
            .join(" ")
    };
    text += &format!("CPU features found: {}\n", list(|found, _| found));
    text += &format!("CPU features used:  {}\n", list(|_, used| used));
    print(text + &format!("memory available:   {:.1} GB", available as f64 / 1e9))
}

fn kind(kind: DeviceKind) -> &'static str {
    match kind {
        DeviceKind::Cpu => "cpu",
        DeviceKind::Gpu => "gpu",
        DeviceKind::IntegratedGpu => "integrated gpu",
        DeviceKind::Other => "other",
    }
}
