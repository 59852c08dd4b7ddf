//! Rows of tokens, as long as the text encoder's position table.

use super::Tokenizer;
use super::weighting;
use crate::error::{Error, Result};

/// A prompt may have this many bytes.
pub const MAX_PROMPT_BYTES: usize = 64 * 1024;

/// A prompt may fill this many chunks.
pub const MAX_CHUNKS: usize = 64;

/// A prompt's tokens in chunks: each is a row that the text encoder takes.
///
/// A chunk is the token that begins a text, the content, the token that ends it, and padding up to
/// the encoder's length. The states of all chunks, one after the other, are the prompt's states.
#[derive(Clone, Debug, PartialEq)]
pub struct Chunks {
    /// A row for each chunk; all have the same length.
    pub tokens: Vec<Vec<u32>>,
    /// The weight of each token; 1 for begin, end and padding.
    pub weights: Vec<Vec<f32>>,
}

/// Splits a prompt in the notation of [`weighting`] into chunks of `max_positions` tokens.
///
/// Content goes on in the next chunk wherever one is full, and at `BREAK`; an empty prompt is one
/// chunk without content. `field` is what an error calls the prompt.
pub fn chunks(tokenizer: &Tokenizer, prompt: &str, max_positions: usize, field: &'static str) -> Result<Chunks> {
    if prompt.len() > MAX_PROMPT_BYTES {
        let reason = format!("{} bytes, at most {MAX_PROMPT_BYTES} are allowed", prompt.len());
        return Err(Error::invalid(field, reason));
    }
    if max_positions < 3 {
        let reason = format!("the text encoder has {max_positions} positions, too few for a token");
        return Err(Error::invalid(field, reason));
    }
    let mut builder = Builder { tokenizer, max_positions, field, done: Chunks::empty(), open: Vec::new() };
    for span in weighting::parse(prompt) {
        if span.starts_chunk {
            builder.close()?;
        }
        for token in tokenizer.encode(&span.text)? {
            builder.push(token, span.weight)?;
        }
    }
    if !builder.open.is_empty() || builder.done.is_empty() {
        builder.close()?;
    }
    Ok(builder.done)
}

impl Chunks {
    /// How many chunks there are.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there are no chunks; never so for what [`chunks()`] returns.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether every weight is 1, so that the states stay as they are.
    pub fn is_unweighted(&self) -> bool {
        self.weights.iter().flatten().all(|weight| *weight == 1.0)
    }

    /// Appends chunks of the empty prompt until there are `count`.
    pub fn pad_to(&mut self, count: usize, tokenizer: &Tokenizer) {
        let Some(length) = self.tokens.first().map(Vec::len) else { return };
        while self.len() < count {
            self.push_row(&[], length, tokenizer);
        }
    }

    /// Pads each of several prompts to the length of the longest, so that they fit one batch.
    pub fn pad_together(prompts: &mut [Chunks], tokenizer: &Tokenizer) {
        let longest = prompts.iter().map(Chunks::len).max().unwrap_or(0);
        for prompt in prompts {
            prompt.pad_to(longest, tokenizer);
        }
    }

    /// Weighs the states of all chunks, one after the other, each chunk by itself; see
    /// [`apply_weights`].
    ///
    /// # Panics
    /// If `states` does not hold a row of `width` for each token.
    pub fn apply_weights(&self, states: &mut [f32], width: usize) {
        let tokens: usize = self.weights.iter().map(Vec::len).sum();
        assert_eq!(states.len(), tokens * width, "a row of {width} states for each of {tokens} tokens");
        let mut rest = states;
        for weights in &self.weights {
            let (chunk, behind) = rest.split_at_mut(weights.len() * width);
            apply_weights(chunk, weights, width);
            rest = behind;
        }
    }

    fn empty() -> Self {
        Self { tokens: Vec::new(), weights: Vec::new() }
    }

    /// Adds a row of `length`, which leaves room for the content and two tokens more.
    fn push_row(&mut self, content: &[(u32, f32)], length: usize, tokenizer: &Tokenizer) {
        let mut tokens = Vec::with_capacity(length);
        tokens.push(tokenizer.bos());
        tokens.extend(content.iter().map(|(token, _)| *token));
        tokens.push(tokenizer.eos());
        tokens.resize(length, tokenizer.pad());

        let mut weights = Vec::with_capacity(length);
        weights.push(1.0);
        weights.extend(content.iter().map(|(_, weight)| *weight));
        weights.resize(length, 1.0);

        self.tokens.push(tokens);
        self.weights.push(weights);
    }
}

/// Fills one chunk after the other.
struct Builder<'t> {
    tokenizer: &'t Tokenizer,
    max_positions: usize,
    field: &'static str,
    done: Chunks,
    /// The content of the chunk that is being filled.
    open: Vec<(u32, f32)>,
}

impl Builder<'_> {
    fn push(&mut self, token: u32, weight: f32) -> Result<()> {
        if self.open.len() == self.max_positions - 2 {
            self.close()?;
        }
        self.open.push((token, weight));
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        if self.done.len() == MAX_CHUNKS {
            let content = MAX_CHUNKS * (self.max_positions - 2);
            let reason = format!("needs more than {MAX_CHUNKS} chunks ({content} tokens)");
            return Err(Error::invalid(self.field, reason));
        }
        self.done.push_row(&self.open, self.max_positions, self.tokenizer);
        self.open.clear();
        Ok(())
    }
}

/// Multiplies the state of each token of one chunk, a row of `width`, by the token's weight, then
/// scales all of them so that their mean is what it was, as AUTOMATIC1111's web UI does.
/// For several chunks there is [`Chunks::apply_weights`].
///
/// Weights that are all 1 leave every byte as it is. The scale is left out where it would not be
/// finite, which takes weights that bring the mean to 0.
///
/// # Panics
/// If `states` does not hold a row of `width` for each weight.
pub fn apply_weights(states: &mut [f32], weights: &[f32], width: usize) {
    assert_eq!(states.len(), weights.len() * width, "a row of {width} states for each weight");
    if weights.iter().all(|weight| *weight == 1.0) || states.is_empty() {
        return;
    }
    let before = mean(states);
    for (row, weight) in states.chunks_exact_mut(width).zip(weights) {
        row.iter_mut().for_each(|state| *state *= weight);
    }
    let scale = (before / mean(states)) as f32;
    if scale.is_finite() {
        states.iter_mut().for_each(|state| *state *= scale);
    }
}

fn mean(states: &[f32]) -> f64 {
    states.iter().map(|state| f64::from(*state)).sum::<f64>() / states.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_keep_the_mean() {
        // python: z = torch.tensor([[1., 2.], [3., 4.]]); m = z.mean()
        //         z = z * torch.tensor([[2.], [.5]]); z * (m / z.mean())
        let mut states = [1.0, 2.0, 3.0, 4.0];
        apply_weights(&mut states, &[2.0, 0.5], 2);
        let expected = [2.105263, 4.210526, 1.578947, 2.105263];
        for (found, expected) in states.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{found} vs {expected}");
        }
    }

    #[test]
    fn each_chunk_is_weighed_by_itself() {
        let weights = vec![vec![1.0, 1.0], vec![2.0, 1.0]];
        let chunks = Chunks { tokens: vec![vec![0, 0]; 2], weights };
        let mut states = [0.1, 0.3, 1.0, 2.0];
        chunks.apply_weights(&mut states, 1);
        assert_eq!(states, [0.1, 0.3, 1.5, 1.5]);
    }

    #[test]
    fn weights_of_one_touch_nothing() {
        let mut states = [f32::NAN, 1.0e-40, -0.0, 3.3];
        let bits = states.map(f32::to_bits);
        apply_weights(&mut states, &[1.0, 1.0], 2);
        assert_eq!(states.map(f32::to_bits), bits);
    }

    #[test]
    fn a_mean_of_zero_stays_finite() {
        let mut states = [1.0, 1.0];
        apply_weights(&mut states, &[1.0, -1.0], 1);
        assert_eq!(states, [1.0, -1.0]);
        apply_weights(&mut [], &[], 0);
    }

    #[test]
    fn content_wraps_into_chunks() {
        let tokenizer = Tokenizer::clip().unwrap();
        let (bos, eos) = (tokenizer.bos(), tokenizer.eos());
        let cat = tokenizer.encode("cat").unwrap()[0];
        let dog = tokenizer.encode("dog").unwrap()[0];

        let empty = chunks(&tokenizer, "", 5, "prompt").unwrap();
        assert_eq!(empty.tokens, [[bos, eos, eos, eos, eos]]);
        assert!(empty.is_unweighted());

        let full = chunks(&tokenizer, "cat (cat dog:2) dog cat", 5, "prompt").unwrap();
        assert_eq!(full.tokens, [[bos, cat, cat, dog, eos], [bos, dog, cat, eos, eos]]);
        assert_eq!(full.weights, [[1.0, 1.0, 2.0, 2.0, 1.0], [1.0; 5]]);

        let exact = chunks(&tokenizer, "cat cat dog", 5, "prompt").unwrap();
        assert_eq!(exact.tokens, [[bos, cat, cat, dog, eos]]);

        let broken = chunks(&tokenizer, "cat BREAK (dog)", 5, "prompt").unwrap();
        assert_eq!(broken.tokens, [[bos, cat, eos, eos, eos], [bos, dog, eos, eos, eos]]);

        let mut both = [empty.clone(), full.clone()];
        Chunks::pad_together(&mut both, &tokenizer);
        assert_eq!(both[0].tokens, [empty.tokens[0].clone(), empty.tokens[0].clone()]);
        assert_eq!(both[1], full);
    }

    #[test]
    fn padding_follows_the_end() {
        let tokenizer = Tokenizer::clip_with(Some(&serde_json::json!({"pad_token": "!"}))).unwrap();
        let found = chunks(&tokenizer, "cat", 6, "prompt").unwrap();
        assert_eq!(found.tokens, [[49406, 2368, 49407, 0, 0, 0]]);
    }

    #[test]
    fn limits_are_errors() {
        let tokenizer = Tokenizer::clip().unwrap();
        let message =
            |prompt: &str, positions| chunks(&tokenizer, prompt, positions, "negative").unwrap_err().to_string();
        assert_eq!(message(&"a".repeat(65537), 77), "negative: 65537 bytes, at most 65536 are allowed");
        assert_eq!(message(&"a ".repeat(20_000), 77), "negative: needs more than 64 chunks (4800 tokens)");
        assert_eq!(message(&"BREAK ".repeat(100), 77), "negative: needs more than 64 chunks (4800 tokens)");
        assert!(message("a", 2).contains("2 positions"));
        assert_eq!(chunks(&tokenizer, &"a ".repeat(4800), 77, "prompt").unwrap().len(), 64);
    }
}
