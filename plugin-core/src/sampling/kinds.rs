//! The names of samplers and schedules.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::noise_config::Spacing;
use crate::error::Error;

/// A method of stepping from one noise level to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplerKind {
    /// Euler steps of the probability flow (Karras et al. 2022, without its second order).
    Euler,
    /// Euler steps further down than asked, and new noise to make up for it.
    #[serde(rename = "euler-a")]
    EulerAncestral,
    /// Heun's method (Karras et al. 2022, algorithm 1): two evaluations a step.
    Heun,
    /// Midpoint steps (after DPM-Solver-2, Lu et al. 2022): two evaluations a step.
    Dpm2,
    /// DPM-Solver++ of second order, multistep (Lu et al. 2022).
    #[serde(rename = "dpmpp-2m")]
    Dpmpp2m,
    /// The same for the stochastic equation: new noise at each step.
    #[serde(rename = "dpmpp-2m-sde")]
    Dpmpp2mSde,
    /// DPM-Solver++ of second order, singlestep and ancestral: two evaluations a step.
    #[serde(rename = "dpmpp-2s-a")]
    Dpmpp2sAncestral,
    /// Denoising diffusion implicit models (Song et al. 2020).
    Ddim,
    /// Latent consistency models (Luo et al. 2023), for networks distilled for it.
    Lcm,
    /// UniPC of second order (Zhao et al. 2023): a predictor, and a corrector for free.
    #[serde(rename = "unipc")]
    UniPc,
}

impl SamplerKind {
    /// All of them, in the order in which a list shows them.
    pub const ALL: [Self; 10] = [
        Self::Euler,
        Self::EulerAncestral,
        Self::Heun,
        Self::Dpm2,
        Self::Dpmpp2m,
        Self::Dpmpp2mSde,
        Self::Dpmpp2sAncestral,
        Self::Ddim,
        Self::Lcm,
        Self::UniPc,
    ];

    /// The name that [`FromStr`] reads and [`fmt::Display`] writes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Euler => "euler",
            Self::EulerAncestral => "euler-a",
            Self::Heun => "heun",
            Self::Dpm2 => "dpm2",
            Self::Dpmpp2m => "dpmpp-2m",
            Self::Dpmpp2mSde => "dpmpp-2m-sde",
            Self::Dpmpp2sAncestral => "dpmpp-2s-a",
            Self::Ddim => "ddim",
            Self::Lcm => "lcm",
            Self::UniPc => "unipc",
        }
    }

    /// Whether its latents are picture + σ · noise, scaled only for the network, rather than
    /// √ᾱ · picture + √(1−ᾱ) · noise.
    pub(super) const fn keeps_noise_unscaled(self) -> bool {
        match self {
            Self::Euler | Self::EulerAncestral | Self::Heun | Self::Dpm2 | Self::Dpmpp2sAncestral => true,
            Self::Dpmpp2m | Self::Dpmpp2mSde | Self::Ddim | Self::Lcm | Self::UniPc => false,
        }
    }
}

/// Which noise levels a run visits.
///
/// The first three choose the training steps; the others choose noise levels in another way, some of
/// them between the ends of what [`NoiseConfig::spacing`](super::NoiseConfig::spacing) gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// [`Spacing::Leading`].
    Leading,
    /// [`Spacing::Trailing`].
    Trailing,
    /// [`Spacing::Linspace`].
    Linspace,
    /// Equal steps of σ^(1/7) (Karras et al. 2022).
    Karras,
    /// Equal steps of log σ.
    Exponential,
    /// Equal training steps from the noisiest, one more than asked and without the last.
    SgmUniform,
    /// The levels of "Align your steps" (Sabour et al. 2024) for Stable Diffusion 1.5.
    Ays,
}

impl ScheduleKind {
    /// All of them, in the order in which a list shows them.
    pub const ALL: [Self; 7] =
        [Self::Leading, Self::Trailing, Self::Linspace, Self::Karras, Self::Exponential, Self::SgmUniform, Self::Ays];

    /// The name that [`FromStr`] reads and [`fmt::Display`] writes.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Leading => "leading",
            Self::Trailing => "trailing",
            Self::Linspace => "linspace",
            Self::Karras => "karras",
            Self::Exponential => "exponential",
            Self::SgmUniform => "sgm-uniform",
            Self::Ays => "ays",
        }
    }

    /// The spacing that it is, if it is one.
    pub const fn spacing(self) -> Option<Spacing> {
        match self {
            Self::Leading => Some(Spacing::Leading),
            Self::Trailing => Some(Spacing::Trailing),
            Self::Linspace => Some(Spacing::Linspace),
            Self::Karras | Self::Exponential | Self::SgmUniform | Self::Ays => None,
        }
    }
}

impl From<Spacing> for ScheduleKind {
    fn from(spacing: Spacing) -> Self {
        match spacing {
            Spacing::Leading => Self::Leading,
            Spacing::Trailing => Self::Trailing,
            Spacing::Linspace => Self::Linspace,
        }
    }
}

impl fmt::Display for SamplerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for ScheduleKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for SamplerKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_name("sampler", text, &Self::ALL, Self::name)
    }
}

impl FromStr for ScheduleKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        parse_name("schedule", text, &Self::ALL, Self::name)
    }
}

/// Finds a name in a closed list, however another tool spells it (`Euler ancestral`, `dpm++_2m`);
/// the error lists what would have been found.
pub(super) fn parse_name<T: Copy>(
    field: &'static str,
    text: &str,
    all: &[T],
    name: fn(T) -> &'static str,
) -> Result<T, Error> {
    let wanted = plain(text);
    all.iter().copied().find(|&kind| plain(name(kind)) == wanted).ok_or_else(|| {
        let names: Vec<_> = all.iter().map(|&kind| name(kind)).collect();
        Error::invalid(field, format!("{text:?} is none of {}", names.join(", ")))
    })
}

/// A name without what spellings differ in.
fn plain(name: &str) -> String {
    let name = name.to_lowercase().replace("ancestral", "a").replace("++", "pp");
    name.chars().filter(|c| c.is_alphanumeric()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_other_tools_are_read() {
        for (text, kind) in [
            ("Euler ancestral", SamplerKind::EulerAncestral),
            ("euler_a", SamplerKind::EulerAncestral),
            ("DPM++ 2M", SamplerKind::Dpmpp2m),
            ("dpm++2m_sde", SamplerKind::Dpmpp2mSde),
            ("dpmpp_2s_ancestral", SamplerKind::Dpmpp2sAncestral),
            ("uni_pc", SamplerKind::UniPc),
        ] {
            assert_eq!(text.parse::<SamplerKind>().unwrap(), kind, "{text}");
        }
        assert_eq!("SGM Uniform".parse::<ScheduleKind>().unwrap(), ScheduleKind::SgmUniform);
        assert!("eu".parse::<SamplerKind>().is_err() && "".parse::<SamplerKind>().is_err());
    }

    #[test]
    fn names_are_read_back_and_serde_spells_them_alike() {
        for kind in SamplerKind::ALL {
            assert_eq!(kind.to_string().parse::<SamplerKind>().unwrap(), kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        for kind in ScheduleKind::ALL {
            assert_eq!(kind.to_string().parse::<ScheduleKind>().unwrap(), kind);
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "eular".parse::<SamplerKind>().unwrap_err().to_string();
        assert!(error.starts_with("sampler: \"eular\" is none of euler, euler-a, "), "{error}");
    }
}
