//! Instruction sets.

use std::fmt;

use super::lanes::{Four, Lanes};

/// An instruction set that the kernels have a variant for and that this processor has: there is no
/// other way to come by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// What the whole program is compiled for.
    Baseline,
    /// AVX2 with FMA and F16C: x86 since 2013.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F: x86 servers since 2017.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// Every 64-bit ARM.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// What runs everywhere.
    pub const BASELINE: Self = Self(Kind::Baseline);

    /// Those that this processor has, the fastest last.
    pub fn available() -> Vec<Self> {
        let mut found = vec![Kind::Baseline];
        #[cfg(target_arch = "x86_64")]
        {
            let has_avx2 =
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
            if has_avx2 {
                found.push(Kind::Avx2);
            }
            if has_avx2 && is_x86_feature_detected!("avx512f") {
                found.push(Kind::Avx512);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if std::arch::is_aarch64_feature_detected!("neon") {
            found.push(Kind::Neon);
        }
        found.into_iter().map(Self).collect()
    }

    /// The fastest that this processor has.
    pub fn best() -> Self {
        Self::available().pop().unwrap_or(Self::BASELINE)
    }

    /// Outputs that lie side by side in a panel of packed weights.
    pub(super) fn panel_width(self) -> usize {
        match self.0 {
            Kind::Baseline => 8,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => 16,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => 32,
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => 16,
        }
    }
}

/// Something that is computed with an instruction set's vectors, and tiles of `ROWS` rows of `VECTORS`
/// vectors, which fill its registers.
pub(super) trait Routine {
    /// # Safety
    /// The processor has the instruction set of `V`. Implementations are `#[inline(always)]`, so that
    /// they are compiled for it.
    unsafe fn run<V: Lanes, const ROWS: usize, const VECTORS: usize>(self);
}

impl Isa {
    /// Runs the variant of `routine` for this instruction set.
    pub(super) fn run(self, routine: impl Routine) {
        // SAFETY: the processor has the instruction set, or there would be no `Isa`.
        unsafe {
            match self.0 {
                Kind::Baseline => routine.run::<Four, 4, 2>(),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => avx2(routine),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => avx512(routine),
                #[cfg(target_arch = "aarch64")]
                Kind::Neon => neon(routine),
            }
        }
    }
}

/// # Safety
/// The processor has the instruction set; so for those below.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn avx2(routine: impl Routine) {
    // SAFETY: promised by the caller, here and below.
    unsafe { routine.run::<std::arch::x86_64::__m256, 6, 2>() };
}

/// # Safety
/// As above.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma,f16c")]
unsafe fn avx512(routine: impl Routine) {
    // SAFETY: as above.
    unsafe { routine.run::<std::arch::x86_64::__m512, 12, 2>() };
}

/// # Safety
/// As above.
#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
unsafe fn neon(routine: impl Routine) {
    // SAFETY: as above.
    unsafe { routine.run::<std::arch::aarch64::float32x4_t, 6, 4>() };
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Baseline => "baseline",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "AVX-512",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "NEON",
        })
    }
}
