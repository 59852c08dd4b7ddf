//! The model inside the program.

#![cfg(feature = "builtin")]

use scumble_core::image::{Limits, read};

use crate::{Place, succeed};

#[test]
fn the_program_brings_a_model() {
    let place = Place::new();
    succeed(
        place.command(
            ["generate", "--prompt", "red bricks"]
                .into_iter()
                .chain("--width 64 --height 64 --steps 2 -o out.png".split(' ')),
        ),
    );
    let made = read(&place.path("out.png"), &Limits::default()).unwrap();
    assert_eq!((made.width(), made.height()), (64, 64));

    let json = succeed(place.command(["inspect", "builtin", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["layout"], "bundle");
    assert_eq!(json["family"], "Stable Diffusion 1.x");
    assert_eq!(json["missing"], serde_json::json!([]));
    assert_eq!(json["unknown"], serde_json::json!([]));
    assert!(json["licence"].is_string(), "{json}");
}
