//! Philox 4×32-10 as CUDA's random library and, through it, `torch.randn` on a GPU use it.
//!
//! Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011): a counter of four words is
//! encrypted with a key of two words in ten rounds.
//! The key is the seed, and the counter of element `i` in call `n` is `[n, 0, i, 0]`; its first two
//! words make one normal number (Box and Muller, the sine half), as tools do that reproduce a GPU's
//! pictures elsewhere.
//! A GPU gives other numbers for tensors larger than its grid (about 10⁵ elements and more), where
//! each thread makes several, and rounds logarithm and sine in `f32` in its own way: the noise is the
//! same to about six digits there, and the same to the last bit wherever this code runs.

const ROUNDS: usize = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// The golden ratio and √3 − 1, as fractions of 2³².
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// 2⁻³², and 2π · 2⁻³² as CUDA's `f32` constant.
const TO_UNIT: f64 = 1.0 / 4_294_967_296.0;
const TO_ANGLE: f64 = std::f32::consts::TAU as f64 * TO_UNIT;

#[derive(Debug, Clone)]
pub(super) struct Philox {
    key: [u32; 2],
    call: u32,
}

impl Philox {
    pub(super) fn new(seed: u64) -> Self {
        Self { key: [seed as u32, (seed >> 32) as u32], call: 0 }
    }

    pub(super) fn normal(&mut self, len: usize) -> Vec<f32> {
        let call = self.call;
        self.call = call.wrapping_add(1);
        (0..len)
            .map(|i| {
                // Beyond 2³² elements the subsequence runs into the counter's fourth word.
                let words = encrypt([call, 0, i as u32, (i as u64 >> 32) as u32], self.key);
                box_muller(words[0], words[1])
            })
            .collect()
    }
}

fn encrypt(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key[0] = key[0].wrapping_add(KEY_STEPS[0]);
            key[1] = key[1].wrapping_add(KEY_STEPS[1]);
        }
        let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
        let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
        counter = [(b >> 32) as u32 ^ counter[1] ^ key[0], b as u32, (a >> 32) as u32 ^ counter[3] ^ key[1], a as u32];
    }
    counter
}

fn box_muller(x: u32, y: u32) -> f32 {
    let u = f64::from(x) * TO_UNIT + 0.5 * TO_UNIT;
    let angle = f64::from(y) * TO_ANGLE + 0.5 * TO_ANGLE;
    ((-2.0 * libm::log(u)).sqrt() * libm::sin(angle)) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with Random123 (`philox4x32 10` in its `kat_vectors`).
    #[test]
    fn known_answers_of_random123() {
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(encrypt(counter, key), expected);
        }
    }

    #[test]
    fn a_call_is_a_prefix_of_a_longer_one_and_calls_differ() {
        let long = Philox::new(3).normal(100);
        let mut philox = Philox::new(3);
        assert_eq!(philox.normal(10), long[..10]);
        assert_ne!(philox.normal(10), long[..10]);
        assert_ne!(Philox::new(3 + (1 << 32)).normal(10), long[..10]);
    }

    #[test]
    fn the_extremes_are_finite() {
        for x in [0, 1, u32::MAX - 1, u32::MAX] {
            for y in [0, 1 << 30, 1 << 31, u32::MAX] {
                assert!(box_muller(x, y).is_finite());
            }
        }
    }
}
