//! The first stage: from prompts to the states that the denoiser looks at.

use ggml::Builder;

use super::{Observer, Pipeline};
use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::models::clip_text::causal_mask;
use crate::text::{Chunks, chunks};

/// The states of a prompt and of its negative, of the same length.
#[derive(Debug, Clone, PartialEq)]
pub struct TextStates {
    /// Width of one state.
    pub width: usize,
    /// `[L, width]`.
    pub positive: Vec<f32>,
    /// `[L, width]`.
    pub negative: Vec<f32>,
}

impl TextStates {
    /// Number of states of each prompt.
    pub fn tokens(&self) -> usize {
        self.positive.len() / self.width
    }
}

impl Pipeline {
    /// Encodes a prompt and its negative, in one batch.
    ///
    /// `clip_skip` counts the text encoder's layers from its end, the last being 1.
    pub fn encode_text(
        &mut self,
        prompt: &str,
        negative: &str,
        clip_skip: Option<usize>,
        observer: &mut dyn Observer,
    ) -> Result<TextStates> {
        let mut states = self.encode_prompts(&[("prompt", prompt), ("negative", negative)], clip_skip, observer)?;
        let negative = states.pop().unwrap_or_default();
        let positive = states.pop().unwrap_or_default();
        Ok(TextStates { width: self.text.config().width, positive, negative })
    }

    /// Encodes any number of prompts in one batch, each with the name that an error gives it. All are
    /// padded to as many chunks as the longest has. Each result is `[L, width]`.
    pub fn encode_prompts(
        &mut self,
        prompts: &[(&'static str, &str)],
        clip_skip: Option<usize>,
        observer: &mut dyn Observer,
    ) -> Result<Vec<Vec<f32>>> {
        let config = self.text.config();
        let skip = match clip_skip {
            None => self.description.skipped_text_layers,
            Some(layer) if (1..=config.layers).contains(&layer) => layer - 1,
            Some(layer) => {
                let reason = format!("{layer} where the text encoder has {} layers", config.layers);
                return Err(Error::invalid("clip-skip", reason));
            }
        };
        let mut all: Vec<Chunks> = prompts
            .iter()
            .map(|(field, prompt)| chunks(&self.tokenizer, prompt, config.positions, field))
            .collect::<Result<_>>()?;
        Chunks::pad_together(&mut all, &self.tokenizer);

        let tokens: Vec<i32> =
            all.iter().flat_map(|chunks| chunks.tokens.iter().flatten()).map(|&token| token as i32).collect();
        let states = self.run_text_encoder(&tokens, skip, observer)?;
        let width = self.text.config().width;
        let per_prompt = states.len() / all.len().max(1);
        let weighted = states.chunks_exact(per_prompt.max(1)).zip(&all).map(|(states, chunks)| {
            let mut states = states.to_vec();
            chunks.apply_weights(&mut states, width);
            states
        });
        Ok(weighted.collect())
    }

    fn run_text_encoder(&self, tokens: &[i32], skip: usize, observer: &dyn Observer) -> Result<Vec<f32>> {
        let positions = self.text.config().positions;
        let builder = Builder::new(&self.backend)?;
        let ((token_tensor, token_slot), (mask_tensor, mask_slot)) =
            self.text.inputs(&builder, tokens.len() / positions);
        let states = builder.output(self.text.forward(token_tensor, mask_tensor, skip));
        let mut graph = Budget::now(&self.backend).build("encoding the prompt", builder, &self.backend)?;
        graph.write_indices(token_slot, tokens)?;
        graph.write(mask_slot, &causal_mask(positions))?;
        graph.compute(&self.backend, &|| observer.stop())?;
        Ok(graph.read(states)?)
    }
}
