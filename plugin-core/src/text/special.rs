//! The special tokens of a tokenizer's configuration.

use serde_json::{Value, json};
use tokenizers::AddedToken;

/// The token before a text.
pub(super) const BOS: &str = "<|startoftext|>";
/// The token after a text; also what stands for unknown symbols.
pub(super) const EOS: &str = "<|endoftext|>";

/// What a configuration says of special tokens, with CLIP's own where it says nothing.
pub(super) struct Specials {
    pub(super) bos: AddedToken,
    pub(super) eos: AddedToken,
    pub(super) unknown: AddedToken,
    pub(super) pad: AddedToken,
    /// Further tokens with the ids that the file gives them, by id.
    pub(super) added: Vec<(u32, AddedToken)>,
}

impl Specials {
    /// Reads `tokenizer_config.json`; `Err` is a clause that says what is wrong with it.
    pub(super) fn from_config(config: Option<&Value>) -> Result<Self, String> {
        let added = added_tokens(config)?;
        let named = |key: &str, default: &str| -> Result<AddedToken, String> {
            let token = match config.and_then(|config| config.get(key)) {
                None | Some(Value::Null) => AddedToken::from(default, true),
                Some(value) => token(value).map_err(|reason| format!("{key} {reason}"))?,
            };
            // As transformers does, the list says more about a token than its name.
            let listed = added.iter().find(|(_, listed)| listed.content == token.content);
            Ok(listed.map_or(token, |(_, listed)| AddedToken { special: true, ..listed.clone() }))
        };
        Ok(Self {
            bos: named("bos_token", BOS)?,
            eos: named("eos_token", EOS)?,
            unknown: named("unk_token", EOS)?,
            pad: named("pad_token", EOS)?,
            added,
        })
    }
}

/// The special tokens of the released Stable Diffusion 1: matched after a text is put in lower
/// case, save the one that ends a text, which its use as padding overrides.
pub(super) fn released() -> Value {
    let matched_late = |token: &str| json!({"content": token, "normalized": true});
    json!({
        "bos_token": matched_late(BOS),
        "eos_token": matched_late(EOS),
        "unk_token": matched_late(EOS),
        "pad_token": EOS,
    })
}

/// Lays `special_tokens_map.json` over `tokenizer_config.json`, as transformers does for folders
/// whose configuration does not list `added_tokens_decoder` itself.
///
/// This is where the padding of Stable Diffusion 2 folders (`"!"`) is written down.
pub fn merge_special_tokens(config: Option<&Value>, map: Option<&Value>) -> Value {
    let mut merged = config.and_then(Value::as_object).cloned().unwrap_or_default();
    if !merged.contains_key("added_tokens_decoder") {
        let map = map.and_then(Value::as_object).into_iter().flatten();
        merged.extend(map.map(|(key, value)| (key.clone(), value.clone())));
    }
    Value::Object(merged)
}

/// `added_tokens_decoder` of a configuration: `{"49406": {"content": …, …}, …}`.
fn added_tokens(config: Option<&Value>) -> Result<Vec<(u32, AddedToken)>, String> {
    let Some(list) = config.and_then(|config| config.get("added_tokens_decoder")) else {
        return Ok(Vec::new());
    };
    let list = list.as_object().ok_or("added_tokens_decoder is not an object")?;
    let mut tokens = Vec::with_capacity(list.len());
    for (id, value) in list {
        let id = id.parse().map_err(|_| format!("added_tokens_decoder has the id {id:?}"))?;
        let token = token(value).map_err(|reason| format!("added_tokens_decoder {id} {reason}"))?;
        tokens.push((id, token));
    }
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens)
}

/// A token, written as its text or as an object with `content` and how it is matched.
fn token(value: &Value) -> Result<AddedToken, String> {
    let flag = |key: &str, default: bool| value.get(key).and_then(Value::as_bool).unwrap_or(default);
    let content = value.as_str().or_else(|| value.get("content")?.as_str());
    match content {
        None => Err(format!("is {}, expected a text or an object with content", kind(value))),
        Some("") => Err("is empty".into()),
        Some(content) if value.is_string() => Ok(AddedToken::from(content, true)),
        Some(content) => Ok(AddedToken {
            content: content.into(),
            single_word: flag("single_word", false),
            lstrip: flag("lstrip", false),
            rstrip: flag("rstrip", false),
            normalized: flag("normalized", !flag("special", false)),
            special: flag("special", false),
        }),
    }
}

/// What kind of JSON value this is, for messages.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
