//! The text encoder's vocabulary, from wherever a model keeps it.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value};

use super::json::Config;
use super::source;
use crate::text::merge_special_tokens;
use crate::{Error, Result};

/// The vocabulary of SD is under 2 MB.
const LIMIT_BYTES: u64 = 64 << 20;

/// What a CLIP tokenizer is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizerFiles {
    /// The text of `vocab.json`: token to id.
    pub vocab_json: String,
    /// The text of `merges.txt`: one pair a line, the first line a comment.
    pub merges: String,
    /// `tokenizer_config.json` with `special_tokens_map.json` laid over it, if there is either.
    pub config: Option<Config>,
}

impl TokenizerFiles {
    /// From a folder with `vocab.json` and `merges.txt`, or with a `tokenizer.json` that holds
    /// both (as transformers saves since its version 5). `None` if it has neither.
    pub(super) fn in_folder(folder: &Path) -> Result<Option<TokenizerFiles>> {
        let config_path = folder.join("tokenizer_config.json");
        let config = Config::read_if_exists(&config_path)?;
        let map = Config::read_if_exists(&folder.join("special_tokens_map.json"))?;
        let config = merged(&config_path, config, map);
        let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
        if vocab.exists() && merges.exists() {
            let vocab_json = source::read_text(&vocab, LIMIT_BYTES)?;
            let merges = source::read_text(&merges, LIMIT_BYTES)?;
            return Ok(Some(TokenizerFiles { vocab_json, merges, config }));
        }
        let both = folder.join("tokenizer.json");
        if both.exists() {
            let text = source::read_text(&both, LIMIT_BYTES)?;
            return TokenizerFiles::from_tokenizer_json(&both, &text, config).map(Some);
        }
        Ok(None)
    }

    /// From a file's metadata: `tokenizer.vocab`, `tokenizer.merges`, `tokenizer.config` and
    /// `tokenizer.special_tokens_map`.
    pub(super) fn in_metadata(path: &Path, metadata: &BTreeMap<String, String>) -> Result<Option<TokenizerFiles>> {
        let text = |key: &str| metadata.get(key).cloned();
        let (Some(vocab_json), Some(merges)) = (text("tokenizer.vocab"), text("tokenizer.merges")) else {
            return Ok(None);
        };
        let parsed = |key: &str| text(key).map(|text| Config::parse(path, &text)).transpose();
        let map = parsed("tokenizer.special_tokens_map")?;
        let config = merged(path, parsed("tokenizer.config")?, map);
        Ok(Some(TokenizerFiles { vocab_json, merges, config }))
    }

    /// Takes vocabulary, merges and added tokens out of a `tokenizer.json`; `path` is only for
    /// messages.
    pub fn from_tokenizer_json(path: &Path, text: &str, config: Option<Config>) -> Result<TokenizerFiles> {
        let json = Config::parse(path, text)?;
        let fail = |reason: &str| Error::format(path, reason);
        let model = &json["model"];
        let vocab = model["vocab"].as_object().ok_or_else(|| fail("it has no model.vocab"))?;
        let pairs = model["merges"].as_array().ok_or_else(|| fail("it has no model.merges"))?;
        let mut merges = String::from("#version: 0.2\n");
        for pair in pairs {
            // Newer files write a pair as a list, older ones as one text.
            let line = match pair.as_array().map(Vec::as_slice) {
                Some([Value::String(left), Value::String(right)]) => format!("{left} {right}"),
                _ => pair.as_str().ok_or_else(|| fail("one of model.merges is no pair"))?.into(),
            };
            merges.push_str(&line);
            merges.push('\n');
        }
        let vocab_json = Value::from(vocab.clone()).to_string();
        let config = with_added_tokens(path, config, &json["added_tokens"]);
        Ok(TokenizerFiles { vocab_json, merges, config })
    }
}

fn merged(path: &Path, config: Option<Config>, map: Option<Config>) -> Option<Config> {
    let map = map.as_deref();
    match map {
        None => config,
        Some(_) => Some(Config::from_value(path, merge_special_tokens(config.as_deref(), map))),
    }
}

/// The list of `tokenizer.json`, in the form that `tokenizer_config.json` has it, unless that
/// one is there.
fn with_added_tokens(path: &Path, config: Option<Config>, added: &Value) -> Option<Config> {
    const KEY: &str = "added_tokens_decoder";
    let is_listed = config.as_ref().is_some_and(|config| config.get(KEY).is_some());
    let (Some(added), false) = (added.as_array(), is_listed) else { return config };
    let by_id: Map<String, Value> = added.iter().map(|token| (token["id"].to_string(), token.clone())).collect();
    let members = config.as_deref().and_then(Value::as_object).cloned();
    let mut members = members.unwrap_or_default();
    members.insert(KEY.into(), by_id.into());
    Some(Config::from_value(path, members.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_place_gives_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        assert_eq!(TokenizerFiles::in_folder(path).unwrap(), None);
        let (vocab, merges) = (r#"{"a":0,"b":1}"#, "#version: 0.2\na b\nb a</w>\n");
        let metadata = [("tokenizer.vocab", vocab), ("tokenizer.merges", merges)];
        let metadata = metadata.map(|(key, text)| (key.to_owned(), text.to_owned())).into();
        let expected = TokenizerFiles::in_metadata(path, &metadata).unwrap();
        assert_eq!(expected.as_ref().unwrap().merges, merges);

        let both = r#"{"model":{"vocab":{"a":0,"b":1},"merges":["a b",["b","a</w>"]]}}"#;
        fs::write(path.join("tokenizer.json"), both).unwrap();
        assert_eq!(TokenizerFiles::in_folder(path).unwrap(), expected);
        fs::write(path.join("vocab.json"), vocab).unwrap();
        fs::write(path.join("merges.txt"), merges).unwrap();
        assert_eq!(TokenizerFiles::in_folder(path).unwrap(), expected);

        fs::write(path.join("tokenizer_config.json"), r#"{"pad_token":"!"}"#).unwrap();
        let config = || TokenizerFiles::in_folder(path).unwrap().unwrap().config.unwrap();
        assert_eq!(config().str("pad_token").unwrap(), Some("!"));
        fs::write(path.join("special_tokens_map.json"), r#"{"pad_token":"?"}"#).unwrap();
        assert_eq!(config().str("pad_token").unwrap(), Some("?"));
    }

    #[test]
    fn added_tokens_are_kept() {
        let text = r#"{"added_tokens":[{"id":2,"content":"<x>"}],"model":{"vocab":{},"merges":[]}}"#;
        let files = TokenizerFiles::from_tokenizer_json(Path::new("t"), text, None).unwrap();
        let config = files.config.unwrap();
        assert_eq!(config["added_tokens_decoder"]["2"]["content"], "<x>");
        let listed = Config::parse(Path::new("c"), r#"{"added_tokens_decoder":{}}"#).unwrap();
        let files = TokenizerFiles::from_tokenizer_json(Path::new("t"), text, Some(listed.clone()));
        assert_eq!(files.unwrap().config, Some(listed));
    }

    #[test]
    fn what_is_no_tokenizer_is_an_error() {
        let check = |text: &str, reason: &str| {
            let found = TokenizerFiles::from_tokenizer_json(Path::new("t"), text, None);
            assert_eq!(found.unwrap_err().to_string(), format!("t: {reason}"));
        };
        check("{}", "it has no model.vocab");
        check(r#"{"model":{"vocab":{}}}"#, "it has no model.merges");
        check(r#"{"model":{"vocab":{},"merges":[["a"]]}}"#, "one of model.merges is no pair");
    }
}
