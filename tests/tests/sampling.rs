//! Samplers, schedules and random numbers against the numbers of diffusers, k-diffusion and torch.
//!
//! `tests/reference/schedulers.py` and `noise.py` made the fixtures and say what is in them; with
//! `SCUMBLE_FIXTURES` set, those of another folder are used.

use std::collections::BTreeMap;

use scumble_core::error::Result;
use scumble_core::sampling::rng::{Rng, RngKind};
use scumble_core::sampling::{
    Host, NoiseConfig, Prediction, Sampler, SamplerKind, ScheduleKind, Spacing, StepEnd, from_scheduler_config,
};
use scumble_tests::fixture;
use serde_json::Value;

fn json(name: &str) -> Value {
    scumble_tests::json(&fixture(name))
}

type Tensors = BTreeMap<String, Vec<f32>>;

fn tensors(name: &str) -> Tensors {
    scumble_tests::tensors(&fixture(name)).into_iter().map(|(name, tensor)| (name, tensor.values)).collect()
}

/// The formula that stands for the network in the fixtures, in f32 like there.
fn formula(x: f32, t: f32) -> f32 {
    let cos = f64::from(0.0005 * t).cos() as f32;
    let sin = f64::from(x + 0.001 * t).sin() as f32;
    0.7 * x * cos + 0.3 * sin
}

/// Answers with the formula, hands out the fixture's noise, and keeps what it hears.
struct Recorder<'a> {
    noise: std::slice::ChunksExact<'a, f32>,
    timesteps: Vec<f32>,
    rows: Vec<Vec<f32>>,
    ends: Vec<(usize, usize, usize, usize)>,
}

impl<'a> Recorder<'a> {
    fn new(noise: &'a [f32], width: usize) -> Self {
        let noise = noise.chunks_exact(width);
        Self { noise, timesteps: Vec::new(), rows: Vec::new(), ends: Vec::new() }
    }
}

impl Host for Recorder<'_> {
    fn predict(&mut self, input: &[f32], timestep: f32) -> Result<Vec<f32>> {
        self.timesteps.push(timestep);
        Ok(input.iter().map(|&x| formula(x, timestep)).collect())
    }

    fn noise(&mut self, len: usize) -> Vec<f32> {
        let row = self.noise.next().expect("no more noise than the reference draws");
        assert_eq!(row.len(), len);
        row.to_vec()
    }

    fn step(&mut self, end: StepEnd<'_>) -> Result<()> {
        assert_eq!(end.denoised.len(), end.latents.len());
        self.rows.push(end.latents.to_vec());
        self.ends.push((end.step, end.of, end.evaluations, end.next_index));
        Ok(())
    }
}

fn sampler_kind(name: &str) -> SamplerKind {
    let ours = match name {
        "euler_a" => "euler-a",
        "dpmpp_2m" => "dpmpp-2m",
        "dpmpp_2m_sde" => "dpmpp-2m-sde",
        "dpmpp_2s_a" => "dpmpp-2s-a",
        same => same,
    };
    ours.parse().unwrap()
}

fn schedule_kind(name: &str, spacing: Spacing) -> ScheduleKind {
    match name {
        "discrete" => spacing.into(),
        "sgm_uniform" => ScheduleKind::SgmUniform,
        same => same.parse().unwrap(),
    }
}

/// Cases of k-diffusion that it defines in another way than diffusers, which we follow.
fn is_defined_otherwise(case: &Value) -> bool {
    if !case["source"].as_str().unwrap().starts_with("k_diffusion") {
        return false;
    }
    match (case["sampler"].as_str().unwrap(), case["schedule"].as_str().unwrap()) {
        // Another middle of a step.
        ("dpm2", _) => true,
        // Training steps that are not rounded.
        ("dpmpp_2m", schedule) => !matches!(schedule, "sgm_uniform" | "ays"),
        // Logarithms between training levels.
        ("euler" | "euler_a" | "heun", schedule) => schedule == "discrete",
        _ => false,
    }
}

/// The sampler of a case, made as from a diffusers folder where it has a scheduler's configuration.
fn sampler(case: &Value) -> Sampler {
    let name = case["name"].as_str().unwrap();
    let kind = sampler_kind(case["sampler"].as_str().unwrap());
    let steps = case["steps"].as_u64().unwrap() as usize;
    let schedule = case["schedule"].as_str().unwrap();
    if let Some(class) = case["source"].as_str().unwrap().strip_prefix("diffusers.") {
        let mut config = case["config"].clone();
        config["_class_name"] = class.into();
        let mut defaults = from_scheduler_config(&config).expect(name);
        assert_eq!(defaults.sampler, Some(kind), "{name}");
        let schedule = schedule_kind(schedule, defaults.noise.spacing);
        assert_eq!(defaults.schedule, Some(schedule), "{name}");
        defaults.noise.eta = case["eta"].as_f64().unwrap() as f32;
        return Sampler::new(kind, schedule, &defaults.noise, steps).expect(name);
    }

    let prediction = match case["prediction"].as_str().unwrap() {
        "epsilon" => Prediction::Epsilon,
        _ => Prediction::V,
    };
    let spacing = Spacing::Linspace;
    let noise = NoiseConfig { prediction, spacing, ..NoiseConfig::default() };
    Sampler::new(kind, schedule_kind(schedule, spacing), &noise, steps).expect(name)
}

fn relative_l2(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |value: f64| value * value;
    let apart: f64 = found.iter().zip(expected).map(|(&a, &b)| square(f64::from(a) - f64::from(b))).sum();
    (apart / expected.iter().map(|&b| square(f64::from(b))).sum::<f64>()).sqrt()
}

/// The largest difference relative to the expected value.
fn relative_max(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let apart = |(&a, &b): (&f32, &f32)| (f64::from(a) - f64::from(b)).abs();
    let scale = |b: f32| f64::from(b).abs().max(1e-12);
    found.iter().zip(expected).map(|pair| apart(pair) / scale(*pair.1)).fold(0.0, f64::max)
}

fn compared_cases() -> Vec<Value> {
    let list = json("schedulers.json");
    let cases = list["cases"].as_array().unwrap();
    let compared: Vec<_> = cases.iter().filter(|case| !is_defined_otherwise(case)).cloned().collect();
    assert!(compared.len() > 150, "{} of {}", compared.len(), cases.len());
    for kind in SamplerKind::ALL {
        let found = |case: &Value| sampler_kind(case["sampler"].as_str().unwrap()) == kind;
        assert!(compared.iter().any(found), "no case for {kind}");
    }
    compared
}

#[test]
fn schedules_match_the_reference() {
    let numbers = tensors("schedulers.safetensors");
    let (mut worst_sigma, mut worst_timestep) = (0.0_f64, 0.0_f64);
    for case in compared_cases() {
        let name = case["name"].as_str().unwrap();
        let sampler = sampler(&case);
        let is_ays = case["schedule"] == "ays";

        // torch's square root is off by a last place in one value of six; the published table of
        // "Align your steps" has ten digits of a table in another precision.
        let sigma_bound = if is_ays { 2e-5 } else { 1e-6 };
        if let Some(expected) = numbers.get(&format!("{name}/sigmas")) {
            let apart = relative_max(sampler.sigmas(), expected);
            assert!(apart < sigma_bound, "{name}: sigmas {apart:.1e}");
            worst_sigma = worst_sigma.max(if is_ays { 0.0 } else { apart });
        }
        let expected = &numbers[&format!("{name}/timesteps")];
        let found = sampler.evaluation_timesteps();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(expected) {
            let apart = f64::from((found - expected).abs());
            assert!(apart < 0.02, "{name}: timestep {found}, expected {expected}");
            worst_timestep = worst_timestep.max(apart);
        }
        if is_scaled_otherwise(&case, &sampler) {
            continue;
        }
        let scale = case["init_noise_sigma"].as_f64().unwrap();
        let apart = (f64::from(sampler.initial_scale()) / scale - 1.0).abs();
        assert!(apart < 1e-6, "{name}: initial scale {}, expected {scale}", sampler.initial_scale());
    }
    println!("largest difference: sigmas {worst_sigma:.1e} relative, timesteps {worst_timestep:.1e}");
}

#[test]
fn trajectories_match_the_reference() {
    let numbers = tensors("schedulers.safetensors");
    let noise = &numbers["noise"];
    let mut report = BTreeMap::<String, (f64, f64, usize)>::new();
    let mut failures = Vec::new();
    for case in compared_cases() {
        let name = case["name"].as_str().unwrap();
        let sampler = sampler(&case);
        let expected = &numbers[&format!("{name}/latents")];
        let width = expected.len() / (sampler.steps() + 1);
        let (first, rest) = noise.split_at(width);

        // What the fixture's latents are multiplied by to be in our sampler's scale.
        let scale = |step: usize| match is_scaled_otherwise(&case, &sampler) {
            true => 1.0 / (sampler.sigmas()[step].powi(2) + 1.0).sqrt(),
            false => 1.0,
        };
        let initial = scale(0) * case["init_noise_sigma"].as_f64().unwrap() as f32;
        let mut latents: Vec<f32> = first.iter().map(|noise| noise * initial).collect();
        let mut host = Recorder::new(rest, width);
        sampler.run(&mut latents, &mut host).expect(name);
        assert_eq!(host.timesteps, sampler.evaluation_timesteps(), "{name}");
        assert_eq!(host.rows.len(), sampler.steps(), "{name}");
        assert_eq!(host.rows.last(), Some(&latents), "{name}");
        for (i, &(step, of, evaluations, next)) in host.ends.iter().enumerate() {
            assert_eq!((step, of, next), (i + 1, sampler.steps(), i + 1), "{name}");
            assert!((i + 1..=2 * (i + 1)).contains(&evaluations), "{name}");
        }

        let worst = expected
            .chunks_exact(width)
            .skip(1)
            .zip(&host.rows)
            .enumerate()
            .map(|(i, (expected, found))| {
                let expected: Vec<f32> = expected.iter().map(|x| x * scale(i + 1)).collect();
                relative_l2(found, &expected)
            })
            .fold(0.0, f64::max);
        let floor = case["floor"].as_f64().unwrap();
        let bound = match case["schedule"].as_str().unwrap() {
            "ays" => 2e-5,
            _ => (8.0 * floor).max(1e-6),
        };
        let entry = report.entry(sampler.kind().to_string()).or_default();
        *entry = (entry.0.max(if bound < 2e-5 { worst } else { 0.0 }), entry.1.max(floor), entry.2 + 1);
        if worst > bound {
            failures.push(format!("{name}: {worst:.1e}, floor {floor:.1e}"));
        }
    }
    for (kind, (worst, floor, count)) in report {
        println!("{kind}: {count} cases, largest difference {worst:.1e}, largest floor {floor:.1e}");
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Whether the fixture's latents are picture + σ·noise, and ours √ᾱ·picture + √(1−ᾱ)·noise.
fn is_scaled_otherwise(case: &Value, sampler: &Sampler) -> bool {
    case["space"] == "sigma" && sampler.kind() == SamplerKind::Dpmpp2m
}

fn check_draw(found: &[f32], expected: &Value, what: &str) {
    let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let listed = |key: &str| {
        let list = expected[key].as_array()?;
        Some(list.iter().map(|v| v.as_u64().unwrap() as u32).collect::<Vec<_>>())
    };
    assert_eq!(found.len() as u64, expected["count"].as_u64().unwrap(), "{what}");
    match listed("bits") {
        Some(all) => assert_eq!(bits(found), all, "{what}"),
        None => {
            assert_eq!(bits(&found[..16]), listed("first_bits").unwrap(), "{what}");
            assert_eq!(bits(&found[found.len() - 16..]), listed("last_bits").unwrap(), "{what}");
        }
    }
    let bytes: Vec<u8> = found.iter().flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(sha256(&bytes), expected["sha256"].as_str().unwrap(), "{what}");
}

#[test]
fn torch_noise_is_that_of_torch_bit_for_bit() {
    let fixture = json("rng.json");
    let cases = fixture["torch"].as_array().unwrap();
    assert!(!cases.is_empty());
    for case in cases {
        let (seed, count) = (seed(case), case["count"].as_u64().unwrap() as usize);
        let found = Rng::new(RngKind::Torch, seed).normal(count);
        check_draw(&found, case, &format!("seed {seed}, {count} values"));
    }
    for case in fixture["torch_sequences"].as_array().unwrap() {
        let mut rng = Rng::new(RngKind::Torch, seed(case));
        for draw in case["draws"].as_array().unwrap() {
            let found = rng.normal(draw["count"].as_u64().unwrap() as usize);
            check_draw(&found, draw, &format!("a sequence of seed {}", seed(case)));
        }
    }
}

#[test]
fn philox_noise_is_that_of_cuda() {
    let fixture = json("rng.json");
    for case in fixture["philox"].as_array().unwrap() {
        let (seed, count) = (seed(case), case["count"].as_u64().unwrap() as usize);
        let mut rng = Rng::new(RngKind::Philox, seed);
        for _ in 0..case["offset"].as_u64().unwrap() {
            rng.normal(1);
        }
        check_draw(&rng.normal(count), case, &format!("seed {seed}, {count} values"));
    }

    // What a GPU gave, whose logarithm and sine round in another way.
    let recorded = &fixture["cuda_recorded"];
    let expected = recorded["values"].as_array().unwrap();
    let found = Rng::new(RngKind::Philox, seed(recorded)).normal(expected.len());
    for (found, expected) in found.iter().zip(expected) {
        let apart = (f64::from(*found) - expected.as_f64().unwrap()).abs();
        assert!(apart < 5e-7, "{found} vs {expected}");
    }
}

fn seed(case: &Value) -> u64 {
    case["seed"].as_str().unwrap().parse().unwrap()
}

/// FIPS 180-4, in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    // The first 32 bits of the fractional parts of roots of the first primes.
    let primes: Vec<u32> = (2..320).filter(|n| (2..*n).all(|d| n % d != 0)).take(64).collect();
    let fraction = |root: f64| ((root - root.floor()) * 4_294_967_296.0) as u32;
    let mut hash: Vec<u32> = primes[..8].iter().map(|&p| fraction(f64::from(p).sqrt())).collect();
    let constants: Vec<u32> = primes.iter().map(|&p| fraction(f64::from(p).cbrt())).collect();

    let mut message = bytes.to_vec();
    message.push(0x80);
    message.resize(message.len().next_multiple_of(64), 0);
    if message.len() - bytes.len() < 9 {
        message.resize(message.len() + 64, 0);
    }
    let end = message.len() - 8;
    message[end..].copy_from_slice(&(8 * bytes.len() as u64).to_be_bytes());

    for block in message.chunks_exact(64) {
        let mut w: Vec<u32> = block.chunks_exact(4).map(|b| u32::from_be_bytes(b.try_into().unwrap())).collect();
        for i in 16..64 {
            let (a, b) = (w[i - 15], w[i - 2]);
            let s0 = a.rotate_right(7) ^ a.rotate_right(18) ^ a >> 3;
            let s1 = b.rotate_right(17) ^ b.rotate_right(19) ^ b >> 10;
            w.push(w[i - 16].wrapping_add(s0).wrapping_add(w[i - 7]).wrapping_add(s1));
        }
        let mut v: [u32; 8] = hash.clone().try_into().unwrap();
        for i in 0..64 {
            let s1 = v[4].rotate_right(6) ^ v[4].rotate_right(11) ^ v[4].rotate_right(25);
            let choice = v[4] & v[5] ^ !v[4] & v[6];
            let t1 = [s1, choice, constants[i], w[i]].into_iter().fold(v[7], u32::wrapping_add);
            let s0 = v[0].rotate_right(2) ^ v[0].rotate_right(13) ^ v[0].rotate_right(22);
            let majority = v[0] & v[1] ^ v[0] & v[2] ^ v[1] & v[2];
            v.rotate_right(1);
            v[4] = v[4].wrapping_add(t1);
            v[0] = t1.wrapping_add(s0).wrapping_add(majority);
        }
        hash.iter_mut().zip(v).for_each(|(h, v)| *h = h.wrapping_add(v));
    }
    hash.iter().map(|word| format!("{word:08x}")).collect()
}
