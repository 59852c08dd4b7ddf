"""A capsule person in a pose, with the joints that OpenPose names."""

import numpy as np

from .shapes import Capsule, Sphere

# The order of COCO-18, as OpenPose ControlNets expect it.
JOINTS = (
    "nose", "neck", "right shoulder", "right elbow", "right wrist", "left shoulder", "left elbow", "left wrist",
    "right hip", "right knee", "right ankle", "left hip", "left knee", "left ankle",
    "right eye", "left eye", "right ear", "left ear",
)

# Angles in degrees: upper arm and forearm raised from hanging straight down (sideways),
# thigh and shin swung forward. Each is (right, left).
POSES = {
    "standing": dict(arm=(8, 8), forearm=(4, 4), thigh=(0, 0), shin=(0, 0)),
    "with arms out": dict(arm=(90, 90), forearm=(90, 90), thigh=(0, 0), shin=(0, 0)),
    "with raised arms": dict(arm=(150, 150), forearm=(170, 170), thigh=(0, 0), shin=(0, 0)),
    "waving": dict(arm=(10, 110), forearm=(6, 175), thigh=(0, 0), shin=(0, 0)),
    "walking": dict(arm=(12, 12), forearm=(10, 10), thigh=(28, -24), shin=(18, -40)),
    "kneeling": dict(arm=(15, 15), forearm=(10, 10), thigh=(85, 5), shin=(0, -80)),
    "sitting": dict(arm=(15, 15), forearm=(10, 10), thigh=(88, 88), shin=(0, 0)),
}


def figure(rng, pose, turn):
    """(shapes, joints [18, 3]) of a person about 1.8 units tall standing on y = 0."""
    angles = POSES[pose]
    wobble = lambda pair: np.radians(np.array(pair) + rng.uniform(-7, 7, 2))
    arm, forearm, thigh, shin = (wobble(angles[k]) for k in ("arm", "forearm", "thigh", "shin"))
    hip, neck = np.array([0, 0.0, 0]), np.array([0, 0.52, 0])
    points = {"neck": neck, "nose": neck + (0, 0.20, 0.13)}
    for name, side, i in (("right", -1, 0), ("left", 1, 1)):
        shoulder = neck + (0.2 * side, -0.04, 0)
        elbow = shoulder + 0.29 * np.array([np.sin(arm[i]) * side, -np.cos(arm[i]), 0.08])
        wrist = elbow + 0.27 * np.array([np.sin(forearm[i]) * side, -np.cos(forearm[i]), 0.18])
        top = hip + (0.1 * side, 0, 0)
        knee = top + 0.44 * np.array([0.06 * side, -np.cos(thigh[i]), np.sin(thigh[i])])
        ankle = knee + 0.42 * np.array([0.0, -np.cos(shin[i]), np.sin(shin[i])])
        points |= {
            f"{name} shoulder": shoulder, f"{name} elbow": elbow, f"{name} wrist": wrist,
            f"{name} hip": top, f"{name} knee": knee, f"{name} ankle": ankle,
            f"{name} eye": neck + (0.05 * side, 0.25, 0.11), f"{name} ear": neck + (0.12 * side, 0.22, 0.0),
        }
    drop = min(points["right ankle"][1], points["left ankle"][1], points["right knee"][1], points["left knee"][1]) - 0.08
    c, s = np.cos(turn), np.sin(turn)
    place = lambda p: np.array([p[0] * c + p[2] * s, p[1] - drop, -p[0] * s + p[2] * c], np.float32)
    at = {name: place(np.asarray(p, np.float64)) for name, p in points.items()}
    bones = [
        ("right shoulder", "right elbow", 0.065), ("right elbow", "right wrist", 0.055),
        ("left shoulder", "left elbow", 0.065), ("left elbow", "left wrist", 0.055),
        ("right hip", "right knee", 0.09), ("right knee", "right ankle", 0.07),
        ("left hip", "left knee", 0.09), ("left knee", "left ankle", 0.07),
        ("right shoulder", "left shoulder", 0.075), ("right hip", "left hip", 0.09),
    ]
    shapes = [Capsule(at[a], at[b], r) for a, b, r in bones]
    shapes.append(Capsule(place(neck - (0, 0.08, 0)), place(hip + (0, 0.04, 0)), 0.14))
    shapes.append(Sphere(place(neck + (0, 0.22, 0.0)), 0.13))
    return shapes, np.stack([at[name] for name in JOINTS])
