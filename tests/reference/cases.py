"""The pipeline cases: plain dicts with everything that a request needs. `pipelines.py` runs them.

`index.json` repeats each case with all its keys, so a test needs no other source.
"""

LONG = ("a highly detailed photo of a ruined castle on a hill, covered in ivy and moss, with a red brick tower, "
        "wooden doors with rusty metal plates, a stone bridge over the river, wet from the rain, a knight in silver "
        "standing on the stairs, dark clouds, soft light, sharp focus, ornament, pattern, seamless texture")
WEIGHTED = r"a (mossy:1.4) [red] brick wall, ((ornament)), (sharp (focus:0.7):1.2), \(plain\) text"
NEGATIVE = "blurry, low quality"

DEFAULTS = {
    "kind": "text", "prompt": "a mossy red brick wall", "negative": NEGATIVE, "seed": 42, "rng": "torch", "steps": 10,
    "cfg": 7.5, "guidance_rescale": 0.0, "sampler": "euler", "schedule": "discrete", "spacing": "leading",
    "steps_offset": 1, "prediction": "epsilon", "zero_snr": False, "eta": 0.0, "clip_skip": 1, "batch": 1,
    "strength": 1.0, "source": "diffusers", "posterior": "sample", "autoencoder": "vae", "seeds": "one",
}


def case(name, **changes):
    """The defaults with some of them changed."""
    unknown = set(changes) - set(DEFAULTS) - {"width", "height"}
    assert not unknown, unknown
    return {"name": name} | DEFAULTS | changes


def sd1():
    """Every sampler, schedule, guidance setting, prompt form and kind of request, on the SD 1.x model."""
    rows = [case(sampler, sampler=sampler) for sampler in ("euler", "heun", "dpm2", "dpmpp_2m", "ddim", "unipc")]
    rows += [case(f"{sampler}_karras", sampler=sampler, schedule="karras") for sampler in ("euler", "dpmpp_2m")]
    rows += [
        case("heun_exponential", sampler="heun", schedule="exponential"),
        case("euler_trailing", spacing="trailing", steps_offset=0),
        case("euler_linspace", spacing="linspace", steps_offset=0),
        case("euler_sgm_uniform", schedule="sgm_uniform", source="k"),
        case("dpmpp_2m_ays", sampler="dpmpp_2m", schedule="ays", source="k"),
        case("dpmpp_2s_a_karras", sampler="dpmpp_2s_a", schedule="karras", source="k"),
        case("euler_a", sampler="euler_a"),
        case("dpmpp_2m_sde", sampler="dpmpp_2m_sde"),
        case("ddim_eta1", sampler="ddim", eta=1.0),
        case("lcm", sampler="lcm", steps=4, cfg=1.5),
        case("unguided", cfg=1.0),
        case("rescaled", guidance_rescale=0.7),
        case("no_negative", negative=""),
        case("no_prompt", prompt="", negative=""),
        case("clip_skip_2", clip_skip=2),
        case("long", prompt=LONG),
        case("long_negative", negative=LONG),
        case("weighted", prompt=WEIGHTED, negative="(blurry:1.3), [low] quality"),
        case("long_weighted", prompt=f"({LONG}:1.1), {WEIGHTED}"),
        case("batch", batch=2),
        case("batch_seeds", batch=2, seeds="each"),
        case("odd", width=72, height=40),
        case("taesd", autoencoder="taesd"),
        case("one_step", steps=1),
    ]
    for sampler in ("euler", "heun", "dpm2", "dpmpp_2m", "ddim", "unipc", "euler_a"):
        rows.append(case(f"image_{sampler}", kind="image", sampler=sampler, strength=0.6))
    rows += [
        case("image_karras", kind="image", schedule="karras", strength=0.6),
        case("image_mean", kind="image", strength=0.6, posterior="mean"),
        case("image_weak", kind="image", strength=0.15),
        case("image_full", kind="image", strength=1.0),
        case("inpaint_plain", kind="inpaint", strength=1.0),
        case("inpaint_plain_strength", kind="inpaint", strength=0.6),
        case("inpaint_plain_dpmpp_2m", kind="inpaint", sampler="dpmpp_2m", strength=0.6),
        case("inpaint_plain_mean", kind="inpaint", strength=0.6, posterior="mean"),
    ]
    return rows


def sd2v():
    """Velocity prediction, with and without zero terminal signal.

    Guidance is 4 save in two cases: a random network answers the prompt so strongly that at 7.5 the
    second-order samplers multiply rounding errors up to the bar.
    """
    v = dict(prediction="v_prediction", cfg=4.0)
    strong = v | dict(cfg=7.5)
    zero = v | dict(zero_snr=True, spacing="trailing", steps_offset=0)
    return [
        case("ddim", sampler="ddim", **strong), case("euler", **strong), case("heun", sampler="heun", **v),
        case("dpm2", sampler="dpm2", **v), case("dpmpp_2m", sampler="dpmpp_2m", **v),
        case("unipc", sampler="unipc", **v), case("dpmpp_2m_karras", sampler="dpmpp_2m", schedule="karras", **v),
        case("euler_zero_snr", guidance_rescale=0.7, **zero), case("ddim_zero_snr", sampler="ddim", **zero),
        case("unguided", sampler="ddim", **v | dict(cfg=1.0)), case("long", sampler="ddim", prompt=LONG, **v),
        case("weighted", sampler="ddim", prompt=WEIGHTED, **v), case("odd", sampler="ddim", width=72, height=40, **v),
        case("image", kind="image", sampler="ddim", strength=0.6, **v),
    ]


def inpaint():
    """The nine-channel UNet: latents, mask, masked picture."""
    return [
        case("inpaint", kind="inpaint"), case("inpaint_ddim", kind="inpaint", sampler="ddim"),
        case("inpaint_strength", kind="inpaint", strength=0.6),
        case("inpaint_mean", kind="inpaint", posterior="mean"),
        case("inpaint_unguided", kind="inpaint", cfg=1.0),
    ]
