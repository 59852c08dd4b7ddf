//! Maps that ControlNets take.

use crate::image::FloatImage;

/// A map as a ControlNet was trained on it, in RGB from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Hint {
    /// The map, `[3, H, W]`.
    pub picture: FloatImage,
    /// What a user should know of how it was made: one clause each, empty as a rule.
    pub warnings: Vec<String>,
}

impl Hint {
    /// A map that is ready as it is: nothing is made of it.
    pub fn ready(picture: FloatImage) -> Self {
        Self { picture, warnings: Vec::new() }
    }
}
