//! The tokenizer, prompt weighting and chunks against transformers and `tests/reference/prompts.py`.
//!
//! `tests/reference/tokens.py` and `prompts.py` made the fixtures: `tokens.json` (ids with the real
//! vocabulary), `prompts.json` (what brackets mean), and for each model `reference/prompts.json`
//! (fragments and chunks with the small vocabulary of its folder).
//! With `SCUMBLE_FIXTURES` set, those of another folder are used, save `tokens.json`: the real
//! vocabulary has nothing to do with a seed.

use std::fs;
use std::path::Path;

use scumble_core::text::{Tokenizer, chunks, merge_special_tokens, weighting};
use scumble_tests::fixture;
use serde_json::Value;

fn text(name: &str) -> String {
    let path = fixture(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn json(name: &str) -> Value {
    scumble_tests::json(&fixture(name))
}

/// The rows under `key`, of which there must be some.
fn rows(file: &Value, key: &str, at_least: usize) -> Vec<Value> {
    let rows = file[key].as_array().expect(key);
    assert!(rows.len() >= at_least, "only {} {key}", rows.len());
    rows.clone()
}

fn string(value: &Value) -> &str {
    value.as_str().expect("a text")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("ids")
}

/// The tokenizer of one of the small models.
fn small(model: &str) -> Tokenizer {
    let file = |file: &str| text(&format!("{model}/tokenizer/{file}"));
    let config = json(&format!("{model}/tokenizer/tokenizer_config.json"));
    let map = json(&format!("{model}/tokenizer/special_tokens_map.json"));
    let config = merge_special_tokens(Some(&config), Some(&map));
    Tokenizer::from_files(&file("vocab.json"), &file("merges.txt"), Some(&config), model.as_ref()).unwrap()
}

fn check_fragments(row: &Value) {
    let prompt = string(&row["prompt"]);
    let expected: Vec<(String, f64)> = serde_json::from_value(row["fragments"].clone()).expect("fragments");
    let found = weighting::parse(prompt);
    let found: Vec<(String, f64)> = found.into_iter().map(|span| (span.text, span.weight.into())).collect();
    assert_eq!(found.len(), expected.len(), "{prompt:?}: {found:?} vs {expected:?}");
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found.0, expected.0, "{prompt:?}");
        assert_weight(found.1, expected.1, prompt);
    }
}

fn assert_weight(found: f64, expected: f64, prompt: &str) {
    assert!((found - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{prompt:?}: {found} vs {expected}");
}

#[test]
fn ids_match_transformers() {
    let tokenizer = Tokenizer::clip().unwrap();
    let special = [tokenizer.bos(), tokenizer.eos(), tokenizer.pad(), tokenizer.len() as u32];
    assert_eq!(special, [49406, 49407, 49407, 49408]);
    let tokens = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/tokens.json");
    for row in rows(&scumble_tests::json(&tokens), "strings", 50) {
        let prompt = string(&row["text"]);
        assert_eq!(tokenizer.encode(prompt).unwrap(), ids(&row["ids"]), "{prompt:?}");
    }
}

#[test]
fn weighting_matches_the_reference() {
    rows(&json("prompts.json"), "prompts", 30).iter().for_each(check_fragments);
}

#[test]
fn chunks_match_the_reference() {
    for (model, pad) in [("sd1", "<|endoftext|>"), ("sd2v", "!")] {
        let tokenizer = small(model);
        let vocabulary = json(&format!("{model}/tokenizer/vocab.json"));
        assert_eq!(Some(u64::from(tokenizer.pad())), vocabulary[pad].as_u64(), "{model}");
        let mut longest = 0;
        for row in rows(&json(&format!("{model}/reference/prompts.json")), "prompts", 2) {
            check_fragments(&row);
            let prompt = string(&row["prompt"]);
            let found = chunks(&tokenizer, prompt, 77, "prompt").unwrap();
            let expected = row["chunks"].as_array().expect("chunks");
            let expected_ids: Vec<Vec<u32>> = expected.iter().map(|chunk| ids(&chunk["ids"])).collect();
            assert_eq!(found.tokens, expected_ids, "{model}: {prompt:?}");
            for (found, expected) in found.weights.iter().zip(expected) {
                let expected: Vec<f64> = serde_json::from_value(expected["weights"].clone()).expect("weights");
                assert_eq!(found.len(), expected.len(), "{model}: {prompt:?}");
                found
                    .iter()
                    .zip(expected)
                    .for_each(|(found, expected)| assert_weight((*found).into(), expected, prompt));
            }
            longest = longest.max(found.len());
        }
        assert!(longest > 1, "{model}: no prompt of several chunks");
    }
}
