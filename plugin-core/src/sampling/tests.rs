//! Runs from a picture, inpainting, and what goes wrong; whole trajectories are in `tests/`.

use super::*;
use crate::error::Computation;

/// The formula of `tests/reference/schedulers.py` in the place of a network.
fn formula(x: f32, t: f32) -> f32 {
    0.7 * x * (0.0005 * t).cos() + 0.3 * (x + 0.001 * t).sin()
}

/// Made-up noise: `[(((4*k + i) * 37) % 17 - 8) / 5 for i in range(4)]`.
fn noise(k: usize) -> Vec<f32> {
    (0..4).map(|i| (((4 * k + i) * 37 % 17) as f32 - 8.0) / 5.0).collect()
}

const CLEAN: [f32; 4] = [0.5, -1.0, 2.0, 0.25];

/// Answers with the formula; `after` is called at the end of each step.
struct Model<F> {
    draws: usize,
    evaluations: usize,
    after: F,
}

fn model<F: FnMut(StepEnd<'_>) -> Result<()>>(after: F) -> Model<F> {
    Model { draws: 0, evaluations: 0, after }
}

impl<F: FnMut(StepEnd<'_>) -> Result<()>> Host for Model<F> {
    fn predict(&mut self, input: &[f32], timestep: f32) -> Result<Vec<f32>> {
        self.evaluations += 1;
        Ok(input.iter().map(|&x| formula(x, timestep)).collect())
    }

    fn noise(&mut self, len: usize) -> Vec<f32> {
        self.draws += 1;
        noise(self.draws).into_iter().cycle().take(len).collect()
    }

    fn step(&mut self, end: StepEnd<'_>) -> Result<()> {
        (self.after)(end)
    }
}

fn sampler(kind: SamplerKind, steps: usize) -> Sampler {
    Sampler::new(kind, ScheduleKind::Leading, &NoiseConfig::default(), steps).unwrap()
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() < 2e-6 * (1.0 + b.abs()), "{what}: {found:?}, expected {expected:?}");
    }
}

/// The schedulers of diffusers in the loop of its image-to-image pipeline: ten steps, strength 0.7,
/// `scheduler.add_noise(clean, noise(0), timesteps[:1])`, then a step for each timestep with
/// `noise(1)`, `noise(2)`, … in the place of `randn_tensor`.
#[test]
fn runs_from_a_picture_match_diffusers() {
    #[rustfmt::skip]
    let cases = [
        ("euler", 7, [-3.168568, -3.292855, 1.082858, 0.708571], [-0.7610936, -0.7908995, 0.1274271, 0.04566953]),
        ("euler-a", 7, [-3.168568, -3.292855, 1.082858, 0.708571], [-0.218676, -0.3432755, 0.02113557, -0.08684406]),
        ("heun", 13, [-3.168568, -3.292855, 1.082858, 0.708571], [-0.7930419, -0.8246334, 0.1679389, 0.08109723]),
        ("dpm2", 13, [-3.168568, -3.292855, 1.082858, 0.708571], [-0.800198, -0.8320757, 0.1737715, 0.08577886]),
        ("dpmpp-2m", 7, [-1.308082, -1.295483, 0.3557395, 0.2773036], [-0.7922174, -0.7844231, 0.0992943, 0.05660668]),
        ("dpmpp-2m-sde", 7, [-1.308082, -1.295483, 0.3557395, 0.2773036], [-0.2450417, -0.3223554, 0.1473309, -0.04911074]),
        ("ddim", 7, [-1.266699, -1.316386, 0.4328946, 0.2832657], [-0.7831566, -0.8137687, 0.1312502, 0.04704665]),
        ("lcm", 7, [-1.387895, -1.245854, 0.1936258, 0.2635868], [-0.1507639, -0.1694739, 0.1856209, -0.1234029]),
        ("unipc", 7, [-1.308082, -1.295483, 0.3557395, 0.2773036], [-0.7940547, -0.786246, 0.1000433, 0.05718876]),
    ];
    for (name, evaluations, start, end) in cases {
        let sampler = sampler(name.parse().unwrap(), 10).from_strength(0.7).unwrap();
        assert_eq!(sampler.steps(), 7, "{name}");
        let mut latents = CLEAN.to_vec();
        sampler.add_noise(&mut latents, &noise(0));
        assert_close(&latents, &start, name);

        let mut heard = Vec::new();
        let mut model = model(|end| {
            heard.push((end.step, end.of, end.next_index));
            Ok(())
        });
        sampler.run(&mut latents, &mut model).unwrap();
        assert_eq!(model.evaluations, evaluations, "{name}");
        assert_close(&latents, &end, name);
        assert_eq!(heard, (1..=7).map(|i| (i, 7, i)).collect::<Vec<_>>(), "{name}");
    }
}

/// The same in the loop of its inpainting pipeline with an ordinary UNet, strength 1, mask
/// `[1, 0, 1, 0]`: what is outside comes from the picture with the noise of the next step.
#[test]
fn inpainting_matches_diffusers() {
    let cases = [
        ("euler", [-1.391056, -1.0, -0.4998928, 0.25]),
        ("ddim", [-1.428607, -1.0, -0.5146496, 0.25]),
        ("dpmpp-2m", [-1.28994, -1.0, -0.4389146, 0.25]),
        ("unipc", [-1.288188, -1.0, -0.440628, 0.25]),
        ("lcm", [0.1018458, -1.0, -0.2524462, 0.25]),
        ("euler-a", [0.07506632, -1.0, -0.4198844, 0.25]),
    ];
    for (name, expected) in cases {
        let sampler = sampler(name.parse().unwrap(), 10);
        let mut latents: Vec<f32> = noise(0).iter().map(|n| n * sampler.initial_scale()).collect();
        let mut model = model(|end| {
            let mut kept = [0.0; 4];
            sampler.add_noise_at(end.next_index, &CLEAN, &noise(0), &mut kept);
            for i in [1, 3] {
                end.latents[i] = kept[i];
            }
            Ok(())
        });
        sampler.run(&mut latents, &mut model).unwrap();
        assert_close(&latents, &expected, name);
    }
}

/// Configurations as they stand in `scheduler_config.json`, run by the class that they name: noise
/// drawn and latents begun as in the tests above.
#[test]
fn options_of_a_configuration_match_diffusers() {
    #[rustfmt::skip]
    let cases = [
        (r#"{"_class_name":"EulerDiscreteScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","final_sigmas_type":"sigma_min"}"#, 6, [-2.287837, -1.304985, -0.7669518, -0.3382595]),
        (r#"{"_class_name":"EulerDiscreteScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","use_karras_sigmas":true,"sigma_min":0.1,"sigma_max":10.0}"#, 6, [-1.631086, -1.003288, -0.6109684, -0.251801]),
        (r#"{"_class_name":"EulerDiscreteScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","prediction_type":"sample","timestep_spacing":"trailing"}"#, 6, [-1.754853, -1.194369, -0.3418795, 0.5407695]),
        (r#"{"_class_name":"EulerDiscreteScheduler"}"#, 6, [-9.769378, -7.104477, -4.488226, -1.315235]),
        (r#"{"_class_name":"HeunDiscreteScheduler","clip_sample":true,"clip_sample_range":0.5}"#, 6, [-0.5, -0.5, -0.3605542, -0.02516898]),
        (r#"{"_class_name":"KDPM2DiscreteScheduler","prediction_type":"v_prediction"}"#, 6, [-0.6697483, -0.432505, -0.198285, 0.03866613]),
        (r#"{"_class_name":"DPMSolverMultistepScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","final_sigmas_type":"sigma_min"}"#, 6, [-1.669784, -0.9443002, -0.533786, -0.1809164]),
        (r#"{"_class_name":"DPMSolverMultistepScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","final_sigmas_type":"sigma_min"}"#, 16, [-1.706367, -1.033769, -0.5921314, -0.1759492]),
        (r#"{"_class_name":"DPMSolverMultistepScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","final_sigmas_type":"sigma_min","lower_order_final":false}"#, 6, [-1.775463, -1.056062, -0.5664036, -0.09757143]),
        (r#"{"_class_name":"DPMSolverMultistepScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","final_sigmas_type":"sigma_min","euler_at_final":true}"#, 16, [-1.638766, -0.9774091, -0.5611119, -0.1785782]),
        (r#"{"_class_name":"DPMSolverMultistepScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","algorithm_type":"sde-dpmsolver++","final_sigmas_type":"sigma_min"}"#, 16, [0.4160611, 0.06469873, 0.460257, -0.7359726]),
        (r#"{"_class_name":"DPMSolverMultistepScheduler","beta_schedule":"squaredcos_cap_v2","use_karras_sigmas":true}"#, 6, [777.3649, 351.6464, 271.1524, 240.4929]),
        (r#"{"_class_name":"UniPCMultistepScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","final_sigmas_type":"sigma_min","lower_order_final":false}"#, 6, [-1.817029, -1.102308, -0.6021659, -0.1134145]),
        (r#"{"_class_name":"UniPCMultistepScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","use_karras_sigmas":true,"timestep_spacing":"leading","steps_offset":1}"#, 6, [-1.102495, -0.621601, -0.2639759, 0.07103027]),
        (r#"{"_class_name":"DDIMScheduler"}"#, 6, [-0.7649173, -0.5048829, -0.2780751, -0.0865654]),
        (r#"{"_class_name":"DDIMScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","clip_sample":false,"prediction_type":"sample","set_alpha_to_one":false}"#, 6, [-1.724458, -1.155689, -0.3446766, 0.4951444]),
        (r#"{"_class_name":"DDIMScheduler","beta_start":0.00085,"beta_end":0.012,"beta_schedule":"scaled_linear","clip_sample_range":0.75,"num_train_timesteps":500}"#, 6, [-0.75, -0.5751705, -0.2706996, 0.0219125]),
        (r#"{"_class_name":"LCMScheduler","original_inference_steps":20,"timestep_scaling":0.01}"#, 6, [0.0456314, -0.2343625, 0.1114149, -0.5893931]),
        (r#"{"_class_name":"LCMScheduler","clip_sample":true,"clip_sample_range":0.5,"prediction_type":"v_prediction"}"#, 6, [0.02965448, 0.08682965, 0.220821, -0.3367481]),
    ];
    for (config, steps, expected) in cases {
        let Defaults { sampler, schedule, noise: table } =
            from_scheduler_config(&serde_json::from_str(config).unwrap()).unwrap();
        let sampler = Sampler::new(sampler.unwrap(), schedule.unwrap(), &table, steps).unwrap();
        let mut latents: Vec<f32> = noise(0).iter().map(|n| n * sampler.initial_scale()).collect();
        sampler.run(&mut latents, &mut model(|_| Ok(()))).unwrap();
        assert_close(&latents, &expected, config);
    }
}

/// `min(int(steps * strength), steps)` in Python.
#[test]
fn strength_keeps_as_many_steps_as_diffusers() {
    let cases = [(10, 0.7, 7), (10, 0.3, 3), (100, 0.29, 28), (50, 0.58, 28), (10, 1.0, 10), (20, 0.05, 1)];
    for (steps, strength, kept) in cases {
        let sampler = sampler(SamplerKind::Euler, steps).from_strength(strength).unwrap();
        assert_eq!(sampler.steps(), kept, "{steps} · {strength}");
        assert_eq!((sampler.timesteps().len(), sampler.sigmas().len()), (kept, kept + 1));
    }
    for strength in [0.0, -0.1, 1.0001, f32::NAN, f32::INFINITY, f32::MIN_POSITIVE, 0.09] {
        let error = sampler(SamplerKind::Euler, 10).from_strength(strength).unwrap_err();
        assert!(error.to_string().starts_with("strength: "), "{error}");
    }
}

/// `set_timesteps(timesteps=AysSchedules["StableDiffusionTimesteps"])`.
#[test]
fn align_your_steps_matches_diffusers() {
    #[rustfmt::skip]
    let sigmas = [
        14.614647, 6.474578, 3.8636763, 2.694616, 1.884193, 1.3943812, 0.9642588, 0.65236896, 0.39774635, 0.15152371, 0.0,
    ];
    for kind in [SamplerKind::Euler, SamplerKind::Dpmpp2m] {
        let sampler = Sampler::new(kind, ScheduleKind::Ays, &NoiseConfig::default(), 10).unwrap();
        assert_eq!(sampler.timesteps(), [999.0, 850.0, 736.0, 645.0, 545.0, 455.0, 343.0, 233.0, 124.0, 24.0]);
        assert_close(sampler.sigmas(), &sigmas, "ays");
    }
}

/// Every sampler with every schedule, many numbers of steps and several tables: a run or an error,
/// with finite levels that fall and as many evaluations as were announced.
#[test]
fn every_combination_runs_or_is_refused() {
    let velocity = NoiseConfig { prediction: Prediction::V, ..NoiseConfig::default() };
    let tables = [
        NoiseConfig::default(),
        NoiseConfig { spacing: Spacing::Trailing, rescale_betas_zero_snr: true, ..velocity.clone() },
        NoiseConfig { final_sigma: FinalSigma::Min, spacing: Spacing::Linspace, ..velocity.clone() },
        NoiseConfig { beta_schedule: BetaSchedule::SquaredcosCapV2, lower_order_final: false, ..velocity.clone() },
        NoiseConfig { train_steps: 60, steps_offset: 0, ..velocity },
    ];
    let mut refused = 0;
    for noise in &tables {
        for kind in SamplerKind::ALL {
            for schedule in ScheduleKind::ALL {
                for steps in [1, 2, 3, 4, 7, 10, 14, 15, 16, 20, 25, 30, 50, 61, 100, 121, 500, 999, 1000] {
                    let what = format!("{kind} {schedule} {steps}");
                    let sampler = match Sampler::new(kind, schedule, noise, steps) {
                        Ok(sampler) => sampler,
                        Err(error) => {
                            assert!(error.to_string().starts_with("steps: "), "{what}: {error}");
                            let few = noise.train_steps == 1000 && steps <= 50;
                            assert!(!few, "{what}: {error}");
                            refused += 1;
                            continue;
                        }
                    };
                    assert!(sampler.sigmas().is_sorted_by(|a, b| a >= b), "{what}");
                    if steps > 100 {
                        continue;
                    }
                    let mut model = model(|end| {
                        assert!(end.denoised.iter().all(|value| value.is_finite()));
                        Ok(())
                    });
                    let mut latents = vec![0.5 * sampler.initial_scale(); 2];
                    sampler.run(&mut latents, &mut model).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(model.evaluations, sampler.evaluation_timesteps().len(), "{what}");
                }
            }
        }
    }
    println!("{refused} combinations refused");
}

/// Odd values in every field: each is refused, or gives runs whose levels are as they should be.
#[test]
fn odd_configurations_do_no_harm() {
    use serde_json::json;
    let fields = [
        "num_train_timesteps",
        "beta_start",
        "beta_end",
        "trained_betas",
        "steps_offset",
        "sigma_min",
        "sigma_max",
        "original_inference_steps",
        "timestep_scaling",
        "clip_sample_range",
        "beta_schedule",
        "timestep_spacing",
        "lambda_min_clipped",
    ];
    #[rustfmt::skip]
    let values = [
        json!(null), json!(true), json!(""), json!("linear"), json!("squaredcos_cap_v2"), json!("trailing"), json!([]),
        json!([0.5]), json!({}), json!(0), json!(1), json!(2), json!(3), json!(10), json!(17), json!(99_999), json!(-1),
        json!(0.5), json!(0.999), json!(1e-7), json!(1e-30), json!(1e308), json!(u64::MAX), json!(i64::MIN), json!(5e-324),
        json!(vec![1e-4; 1000]), json!(vec![0.5; 1000]),
    ];
    let mut accepted = 0;
    for class in ["EulerDiscreteScheduler", "LCMScheduler", "DPMSolverMultistepScheduler"] {
        for field in fields {
            for value in &values {
                let mut config = json!({"_class_name": class});
                config[field] = value.clone();
                let Ok(defaults) = from_scheduler_config(&config) else {
                    continue;
                };
                accepted += 1;
                for kind in SamplerKind::ALL {
                    for schedule in [ScheduleKind::Leading, ScheduleKind::Karras, ScheduleKind::Ays] {
                        if let Ok(sampler) = Sampler::new(kind, schedule, &defaults.noise, 3) {
                            assert!(sampler.sigmas().is_sorted_by(|a, b| a >= b), "{config} {kind} {schedule}");
                            assert!(sampler.timesteps().iter().all(|t| t.is_finite()), "{config} {kind}");
                        }
                    }
                }
            }
        }
    }
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn a_number_of_steps_that_cannot_be_is_refused() {
    for steps in [0, 1001, usize::MAX] {
        for kind in SamplerKind::ALL {
            let error = Sampler::new(kind, ScheduleKind::Karras, &NoiseConfig::default(), steps).unwrap_err();
            assert!(error.to_string().starts_with("steps: "), "{error}");
        }
    }
}

#[test]
fn values_that_are_no_numbers_end_the_run_where_they_occur() {
    struct Broken(usize);
    impl Host for Broken {
        fn predict(&mut self, input: &[f32], _timestep: f32) -> Result<Vec<f32>> {
            self.0 += 1;
            let value = if self.0 == 4 { f32::NAN } else { 0.1 };
            Ok(vec![value; input.len()])
        }
        fn noise(&mut self, len: usize) -> Vec<f32> {
            vec![0.0; len]
        }
        fn step(&mut self, _end: StepEnd<'_>) -> Result<()> {
            Ok(())
        }
    }
    for kind in SamplerKind::ALL {
        let expected = match kind {
            SamplerKind::Heun | SamplerKind::Dpm2 | SamplerKind::Dpmpp2sAncestral => 2,
            _ => 4,
        };
        let mut latents = vec![1.0; 3];
        match sampler(kind, 10).run(&mut latents, &mut Broken(0)) {
            Err(Error::NotFinite(Computation::Step { step, of: 10 })) => assert_eq!(step, expected, "{kind}"),
            other => panic!("{kind}: {other:?}"),
        }
        assert!(latents.iter().all(|value| value.is_finite()), "{kind}");
    }
}

#[test]
fn an_error_of_the_host_ends_the_run() {
    for kind in SamplerKind::ALL {
        let mut model = model(|end| if end.step == 3 { Err(Error::Cancelled) } else { Ok(()) });
        let result = sampler(kind, 10).run(&mut vec![1.0; 4], &mut model);
        assert!(matches!(result, Err(Error::Cancelled)), "{kind}");
        assert!(model.evaluations <= 6, "{kind}");
    }
}

#[test]
fn a_prediction_of_another_length_is_an_error() {
    struct Short;
    impl Host for Short {
        fn predict(&mut self, input: &[f32], _timestep: f32) -> Result<Vec<f32>> {
            Ok(input[1..].to_vec())
        }
        fn noise(&mut self, len: usize) -> Vec<f32> {
            vec![0.0; len]
        }
        fn step(&mut self, _end: StepEnd<'_>) -> Result<()> {
            Ok(())
        }
    }
    for kind in SamplerKind::ALL {
        let result = sampler(kind, 5).run(&mut vec![1.0; 4], &mut Short);
        assert!(matches!(result, Err(Error::Internal(_))), "{kind}");
    }
}
