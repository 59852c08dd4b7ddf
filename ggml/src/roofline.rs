//! This machine's own peak, as a yardstick for what graphs reach.

use std::time::Instant;

/// Sides of the square matrices.
const SIDE: usize = 1536;
/// Bytes that are read to measure memory: more than any cache holds.
const READ: usize = 256 << 20;
/// Runs, of which the best counts.
const RUNS: usize = 5;

/// The best of several f32 products of square matrices by the `gemm` crate, which picks the widest
/// instructions that this processor has, on `threads` threads: GFLOP/s.
pub fn peak_matmul_gflops(threads: usize) -> f64 {
    let a: Vec<f32> = (0..SIDE * SIDE).map(|i| (i % 17) as f32 - 8.0).collect();
    let b: Vec<f32> = (0..SIDE * SIDE).map(|i| (i % 13) as f32 - 6.0).collect();
    let mut c = vec![0f32; SIDE * SIDE];
    let parallelism = if threads > 1 { gemm::Parallelism::Rayon(threads) } else { gemm::Parallelism::None };
    let best = (0..RUNS)
        .map(|_| {
            let began = Instant::now();
            let row = SIDE as isize;
            // SAFETY: each matrix has SIDE columns and rows, its rows one after another.
            unsafe {
                gemm::gemm(
                    SIDE,
                    SIDE,
                    SIDE,
                    c.as_mut_ptr(),
                    1,
                    row,
                    false,
                    a.as_ptr(),
                    1,
                    row,
                    b.as_ptr(),
                    1,
                    row,
                    0.0,
                    1.0,
                    false,
                    false,
                    false,
                    parallelism,
                );
            }
            began.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    2.0 * (SIDE as f64).powi(3) / best / 1e9
}

/// The best of several passes over memory that no cache holds, each of `threads` threads reading its part:
/// bytes a second, in units of 10⁹. 0 where there is no memory for it.
pub fn peak_read_gigabytes(threads: usize) -> f64 {
    let mut numbers = Vec::<u64>::new();
    let length = READ / size_of::<u64>();
    if numbers.try_reserve_exact(length).is_err() {
        return 0.0;
    }
    numbers.extend(0..length as u64);
    let sum = |part: &[u64]| part.iter().fold(0u64, |sum, number| sum.wrapping_add(*number));
    let best = (0..RUNS)
        .map(|_| {
            let began = Instant::now();
            std::thread::scope(|scope| {
                for part in numbers.chunks(length.div_ceil(threads.max(1))) {
                    scope.spawn(move || std::hint::black_box(sum(part)));
                }
            });
            began.elapsed().as_secs_f64()
        })
        .fold(f64::INFINITY, f64::min);
    READ as f64 / best / 1e9
}
