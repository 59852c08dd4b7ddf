//! Pictures of a graph, in whichever order the back end computes them best.

use crate::custom::{Concat, Geometry, GroupMoments, GroupNorm, GroupScales, GroupSizes, Windows};
use crate::kernels::Activation;
use crate::ops::{check, misfit, picks_as_pytorch};
use crate::{Error, Result, Shape, Tensor, Weight};

/// A batch of pictures in a graph under construction.
///
/// ggml's ops want a plane per channel, `[w, h, c, n]`; our own kernels want pixel by pixel,
/// `[c, w, h, n]`, which is also how tokens lie. An enlargement is only noted, and made as the pictures are
/// read by what comes next.
#[derive(Clone, Copy)]
pub struct Picture<'g> {
    values: Tensor<'g>,
    by_pixel: bool,
    /// Width and height, which may be larger than those of `values`.
    size: [usize; 2],
}

/// How a convolution passes over a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Pixels from one place to the next.
    pub stride: usize,
    /// Pixels to the left and above, and to the right and below.
    pub padding: [usize; 2],
    /// Whether the padding continues the picture from its opposite edge, and is not zero.
    pub wraps: bool,
}

/// What a convolution's result is added to.
#[derive(Clone, Copy)]
pub enum Addend<'g> {
    /// Nothing.
    None,
    /// Pictures of the same sizes.
    Picture(Picture<'g>),
    /// A number for each channel of each picture, `[c, n]`.
    Channels(Tensor<'g>),
}

impl<'g> Picture<'g> {
    /// Pictures given as planes, `[w, h, c, n]`.
    pub fn new(planes: Tensor<'g>) -> Self {
        let [width, height, ..] = planes.shape();
        let by_pixel = planes.builder.isa().is_some();
        let values = if by_pixel { planes.permute([1, 2, 0, 3]).contiguous() } else { planes };
        Self { values, by_pixel, size: [width, height] }
    }

    /// The pictures as planes, `[w, h, c, n]`.
    pub fn planes(self) -> Tensor<'g> {
        let values = self.made().values;
        if self.by_pixel { values.permute([2, 0, 1, 3]).contiguous() } else { values }
    }

    /// Pictures given as tokens, `[c, w · h, n]`.
    pub fn from_tokens(tokens: Tensor<'g>, width: usize, height: usize) -> Self {
        let [channels, _, batch, _] = tokens.shape();
        let by_pixel = tokens.builder.isa().is_some();
        let values = match by_pixel {
            true => tokens.reshape([channels, width, height, batch]),
            false => tokens.permute([1, 0, 2, 3]).contiguous().reshape([width, height, channels, batch]),
        };
        Self { values, by_pixel, size: [width, height] }
    }

    /// Each pixel's channels as a token, `[c, w · h, n]`.
    pub fn tokens(self) -> Tensor<'g> {
        let values = self.made().values;
        let ([width, height], channels, batch) = (self.size, self.channels(), self.batch());
        match self.by_pixel {
            true => values.reshape([channels, width * height, batch, 1]),
            false => values.reshape([width * height, channels, batch, 1]).permute([1, 0, 2, 3]).contiguous(),
        }
    }

    /// Pixels from left to right.
    pub fn width(self) -> usize {
        self.size[0]
    }

    /// Pixels from top to bottom.
    pub fn height(self) -> usize {
        self.size[1]
    }

    /// Numbers of a pixel.
    pub fn channels(self) -> usize {
        self.values.shape()[if self.by_pixel { 0 } else { 2 }]
    }

    /// How many pictures.
    pub fn batch(self) -> usize {
        self.values.shape()[3]
    }

    /// Enlarged to `width` × `height` by the nearest pixel, the one at ⌊i · old / new⌋, as PyTorch's `nearest`
    /// does. Whole factors, and one less than twice the size, always work; a ratio at which rounding would
    /// pick another pixel is refused.
    pub fn nearest(self, width: usize, height: usize) -> Self {
        let made = self.made();
        if !self.by_pixel {
            return made.with(made.values.nearest(width, height));
        }
        let exact = [(made.size[0], width), (made.size[1], height)].into_iter().all(|(old, new)| {
            new >= old && picks_as_pytorch(old, new) && (0..new).all(|i| picked(i, old, new) == i * old / new)
        });
        match exact {
            true => Self { size: [width, height], ..made },
            false => {
                let reason = format!("can't be enlarged to {width}×{height} exactly");
                made.with(Tensor::poisoned(made.values.builder, made.values.misfit("nearest", reason)))
            }
        }
    }

    /// Convolved with `weight`, `[k, k, c, c']`, plus `bias`, `[c']`, plus `added`.
    pub fn convolve(self, weight: &Weight, bias: Option<&Weight>, window: Window, added: Addend<'g>) -> Self {
        if weight.packed().is_some() {
            return self.convolve_pixels(weight, bias, window, added);
        }
        let x = self.made().padded(window);
        let y = match x {
            Ok((x, padding)) => x.conv_2d(x.weight(weight), window.stride, padding),
            Err(error) => Tensor::poisoned(self.values.builder, error),
        };
        let y = bias.map_or(y, |bias| y.add(y.weight(bias).reshape([1, 1, y.shape()[2], 1])));
        let [_, _, channels, batch] = y.shape();
        self.with(match added {
            Addend::None => y,
            Addend::Picture(added) => y.add(added.made().values),
            Addend::Channels(added) => y.add(added.reshape([1, 1, channels, batch])),
        })
    }

    fn convolve_pixels(self, weight: &Weight, bias: Option<&Weight>, window: Window, added: Addend<'g>) -> Self {
        const OP: &str = "convolution";
        let ([inner_width, inner_height], k, batch) = (self.inner_size(), weight.shape(), self.batch());
        let Window { stride, padding: [before, after], wraps } = window;
        let size = |size: usize, window: usize| {
            let whole = size.checked_add(before)?.checked_add(after)?;
            Some(whole.checked_sub(window)?.checked_div(stride)? + 1)
        };
        let output = [size(self.size[0], k[0]), size(self.size[1], k[1])].map(Option::unwrap_or_default);
        let shape = [k[3], output[0], output[1], batch];
        let geometry = Geometry::Windows(Windows {
            input: [inner_width, inner_height],
            enlarged: self.size,
            output,
            window: k[0],
            stride,
            padding: before,
            wraps,
        });
        let bias = bias.map(|bias| self.values.weight(bias));
        let (added, expected) = match added {
            Addend::None => (None, shape),
            Addend::Picture(added) => (Some(added.made().values), shape),
            Addend::Channels(added) => (Some(added), [k[3], batch, 1, 1]),
        };
        let fits = || {
            let fit = self.channels() == k[2] && !output.contains(&0);
            check(fit, || misfit(OP, self.values, weight))?;
            let added = added.map_or(expected, Tensor::shape);
            check(added == expected, || Error::Shapes { op: OP, left: expected, right: added })
        };
        self.with(self.values.mapped(OP, weight, bias, added, shape, geometry, fits))
    }

    /// The planes with as much padding as ggml's convolution can't do itself, and what is left to it.
    fn padded(self, window: Window) -> Result<(Tensor<'g>, usize)> {
        let x = self.values;
        match window {
            Window { padding: [before, after], wraps: false, .. } if before == after => Ok((x, before)),
            Window { padding: [0, after], wraps: false, .. } => Ok((x.pad(after, after), 0)),
            Window { padding: [before, after], wraps: true, .. }
                if before.max(after) <= x.shape()[0].min(x.shape()[1]) =>
            {
                let around = |x: Tensor<'g>, dimension: usize| {
                    let size = x.shape()[dimension];
                    let head = (before > 0).then(|| x.narrow(dimension, size - before, before));
                    let x = head.map_or(x, |head| head.concat(x, dimension));
                    let tail = (after > 0).then(|| x.narrow(dimension, before, after));
                    tail.map_or(x, |tail| x.concat(tail, dimension))
                };
                Ok((around(around(x, 0), 1), 0))
            }
            _ => Err(x.misfit("convolution", format!("can't be padded by {:?} here", window.padding))),
        }
    }

    /// Group norm over `groups` groups of channels (Wu and He 2018), times `weight`, plus `bias`, both `[c]`;
    /// then SiLU, if `silu`.
    pub fn group_norm(self, weight: &Weight, bias: &Weight, groups: usize, epsilon: f32, silu: bool) -> Self {
        const OP: &str = "group_norm";
        let x = self.made();
        let channels = x.channels();
        let [weight, bias] = [weight, bias].map(|vector| x.values.weight(vector));
        let fits = || {
            x.values.check_groups(OP, channels, groups, epsilon)?;
            [weight, bias].into_iter().try_for_each(|vector| {
                let fit = vector.elements() == channels;
                check(fit, || Error::Shapes { op: OP, left: x.values.shape(), right: vector.shape() })
            })
        };
        if !self.by_pixel {
            if !x.values.is_poisoned()
                && let Err(error) = fits()
            {
                return x.with(Tensor::poisoned(x.values.builder, error));
            }
            let [weight, bias] = [weight, bias].map(|vector| vector.reshape([1, 1, vector.elements(), 1]));
            let y = x.values.group_norm(groups, epsilon).mul(weight).add(bias);
            return x.with(if silu { y.activate(Activation::Silu) } else { y });
        }
        let sizes = |isa| {
            fits()?;
            Ok(GroupSizes { isa, channels, pixels: x.width() * x.height(), pictures: x.batch(), groups })
        };
        let moments = Tensor::computed(OP, &[x.values], |isa| Ok(GroupMoments(sizes(isa)?)));
        let scales = Tensor::computed(OP, &[moments], |isa| Ok(GroupScales { sizes: sizes(isa)?, epsilon }));
        let shape = x.values.shape();
        x.with(Tensor::computed(OP, &[x.values, scales, weight, bias], |isa| {
            Ok(GroupNorm { sizes: sizes(isa)?, shape, silu })
        }))
    }

    /// The channels of `other` after those of these.
    pub fn concat(self, other: Self) -> Self {
        let (x, other) = (self.made(), other.made());
        if !self.by_pixel {
            return x.with(x.values.concat(other.values, 2));
        }
        let (left, right): (Shape, Shape) = (x.values.shape(), other.values.shape());
        x.with(Tensor::computed("concat", &[x.values, other.values], |_| {
            check(left[1..] == right[1..], || Error::Shapes { op: "concat", left, right })?;
            Ok(Concat { widths: [left[0], right[0]], shape: [left[0] + right[0], left[1], left[2], left[3]] })
        }))
    }

    /// `factor` × each number + `offset`.
    pub fn scale(self, factor: f32, offset: f32) -> Self {
        self.each(|values| values.scale(factor, offset))
    }

    /// A function of each number.
    pub fn activate(self, activation: Activation) -> Self {
        self.each(|values| values.activate(activation))
    }

    /// The hyperbolic tangent of each number.
    pub fn tanh(self) -> Self {
        self.each(Tensor::tanh)
    }

    /// A function of each number; an enlargement may come after it.
    fn each(self, f: impl FnOnce(Tensor<'g>) -> Tensor<'g>) -> Self {
        Self { values: f(self.values), ..self }
    }

    /// With values of any size.
    fn with(self, values: Tensor<'g>) -> Self {
        let [a, b, c, _] = values.shape();
        Self { values, size: if self.by_pixel { [b, c] } else { [a, b] }, ..self }
    }

    /// Width and height before an enlargement that is still to be made.
    fn inner_size(self) -> [usize; 2] {
        let [a, b, c, _] = self.values.shape();
        if self.by_pixel { [b, c] } else { [a, b] }
    }

    /// With any enlargement made.
    fn made(self) -> Self {
        if self.inner_size() == self.size {
            return self;
        }
        let planes = self.values.permute([2, 0, 1, 3]).contiguous().nearest(self.size[0], self.size[1]);
        Self { values: planes.permute([1, 2, 0, 3]).contiguous(), ..self }
    }
}

/// The pixel that PyTorch picks, in single precision.
fn picked(i: usize, old: usize, new: usize) -> usize {
    ((i as f32 * (old as f32 / new as f32)) as usize).min(old - 1)
}
