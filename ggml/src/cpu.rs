//! What the processor can do.

use crate::sys;

/// The instruction set extensions that matter to the networks: each one's name, whether this
/// processor has it, and whether this build's ggml uses it.
///
/// ggml is built for a baseline; what lies beyond it is used by kernels that are chosen at run time.
pub fn cpu_features() -> Vec<(&'static str, bool, bool)> {
    // SAFETY: each only says what ggml was compiled for.
    let used = |asked: unsafe extern "C" fn() -> std::ffi::c_int| unsafe { asked() != 0 };
    features(used)
}

#[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
fn features(used: impl Fn(unsafe extern "C" fn() -> std::ffi::c_int) -> bool) -> Vec<(&'static str, bool, bool)> {
    use std::arch::is_x86_feature_detected as detected;
    vec![
        ("SSE3", detected!("sse3"), used(sys::ggml_cpu_has_sse3)),
        ("SSSE3", detected!("ssse3"), used(sys::ggml_cpu_has_ssse3)),
        // ggml has no question of its own for this one; it is part of every build's baseline.
        ("SSE4.2", detected!("sse4.2"), true),
        ("AVX", detected!("avx"), used(sys::ggml_cpu_has_avx)),
        ("AVX2", detected!("avx2"), used(sys::ggml_cpu_has_avx2)),
        ("FMA", detected!("fma"), used(sys::ggml_cpu_has_fma)),
        ("F16C", detected!("f16c"), used(sys::ggml_cpu_has_f16c)),
        ("BMI2", detected!("bmi2"), used(sys::ggml_cpu_has_bmi2)),
        ("AVX-VNNI", detected!("avxvnni"), used(sys::ggml_cpu_has_avx_vnni)),
        ("AVX512F", detected!("avx512f"), used(sys::ggml_cpu_has_avx512)),
        ("AVX512VBMI", detected!("avx512vbmi"), used(sys::ggml_cpu_has_avx512_vbmi)),
        ("AVX512VNNI", detected!("avx512vnni"), used(sys::ggml_cpu_has_avx512_vnni)),
        ("AVX512BF16", detected!("avx512bf16"), used(sys::ggml_cpu_has_avx512_bf16)),
    ]
}

#[cfg(target_arch = "aarch64")]
fn features(used: impl Fn(unsafe extern "C" fn() -> std::ffi::c_int) -> bool) -> Vec<(&'static str, bool, bool)> {
    use std::arch::is_aarch64_feature_detected as detected;
    vec![
        ("NEON", detected!("neon"), used(sys::ggml_cpu_has_neon)),
        ("FP16", detected!("fp16"), used(sys::ggml_cpu_has_fp16_va)),
        ("DOTPROD", detected!("dotprod"), used(sys::ggml_cpu_has_dotprod)),
        ("I8MM", detected!("i8mm"), used(sys::ggml_cpu_has_matmul_int8)),
        // ggml has no question of its own for this one.
        ("BF16", detected!("bf16"), false),
        ("SVE", detected!("sve"), used(sys::ggml_cpu_has_sve)),
    ]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "x86", target_arch = "aarch64")))]
fn features(_used: impl Fn(unsafe extern "C" fn() -> std::ffi::c_int) -> bool) -> Vec<(&'static str, bool, bool)> {
    Vec::new()
}

#[cfg(test)]
mod tests {
    #[test]
    fn ggml_uses_nothing_that_this_processor_lacks() {
        let features = super::cpu_features();
        assert!(features.iter().all(|&(_, detected, used)| detected || !used), "{features:?}");
        #[cfg(all(target_arch = "x86_64", not(feature = "native")))]
        for beyond in ["AVX", "AVX2", "FMA", "F16C", "AVX512F"] {
            let (.., used) = features.iter().find(|(name, ..)| *name == beyond).unwrap();
            assert!(!used, "the portable build uses {beyond}");
        }
    }
}
