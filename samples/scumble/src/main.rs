//! The command line of Scumble.

mod bench;
mod bench_cancel;
mod bench_ops;
mod builtin;
mod compute;
mod devices;
mod dump;
mod generate;
mod inspect;
mod interrupt;
mod output;
mod progress;

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use scumble_core::Error;

/// Pictures from prompts, on Scumble's own engine.
#[derive(Parser)]
#[command(name = "scumble", version, about, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Make one or more pictures of a prompt
    #[command(after_help = EXAMPLES)]
    Generate(Box<generate::Arguments>),
    /// Say what a model file or folder holds, from its headers alone
    Inspect(inspect::Arguments),
    /// List what this build can compute on
    Devices(devices::Arguments),
    /// Measure how fast and how large a model is on this machine
    #[command(subcommand)]
    Bench(bench::Command),
}

const EXAMPLES: &str = "\
Examples:
  scumble generate --prompt \"mossy red brick wall\" -o wall.png
  scumble generate --prompt \"rusty metal plate\" --model sd15.safetensors --steps 30 --seed 7 -o plate.png
  scumble generate --prompt \"snow\" --init-image ground.png --mask hole.png --strength 1 -o ground-2.png";

/// What the program ends with; clap's own errors are 2 as well.
const BAD_INPUT: u8 = 2;
/// As a shell reports a program that was ended by Ctrl-C.
const INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Generate(arguments) => generate::run(*arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
        Command::Bench(command) => bench::run(command),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(Error::Cancelled) => {
            complain("cancelled");
            ExitCode::from(INTERRUPTED)
        }
        Err(error) => {
            complain(&error.to_string());
            ExitCode::from(BAD_INPUT)
        }
    }
}

/// One line, whatever characters a file's name has.
fn complain(text: &str) {
    let visible = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let line: String = text.chars().map(visible).collect();
    // Where standard error is closed nobody is left to be told.
    let _ = writeln!(std::io::stderr(), "scumble: {line}");
}
