//! The CLIP tokenizer: byte-level pair encoding, whole words at a time.

use std::collections::HashMap;
use std::path::Path;

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::replace::ReplacePattern;
use tokenizers::normalizers::{Lowercase, NFC, NormalizerWrapper, Replace, Sequence};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizerSequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior};

use super::clip_vocab;
use super::special::{self, Specials, kind, merge_special_tokens};
use crate::error::{Error, Result};

/// How CLIP takes a text apart before pairs are merged.
const WORDS: &str = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// Turns text into token ids, as `CLIPTokenizer` of transformers does.
///
/// The work is done by the `tokenizers` crate, which is what transformers runs too.
/// Names of special tokens inside a text (`<|endoftext|>`, and `!` where that is the padding) become
/// those tokens, again as there.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bos: u32,
    eos: u32,
    pad: u32,
    len: usize,
}

impl Tokenizer {
    /// Reads the text of a folder's `vocab.json` and `merges.txt`, and its `tokenizer_config.json`
    /// if there is one (see [`super::merge_special_tokens`] for older folders). `path` is for messages.
    pub fn from_files(vocab_json: &str, merges: &str, config: Option<&Value>, path: &Path) -> Result<Self> {
        let vocab = serde_json::from_str(vocab_json)
            .map_err(|error| Error::format(path, format!("the vocabulary is not JSON: {error}")))?;
        Self::build(vocab_from_json(&vocab), merges_from_text(merges), config)
            .map_err(|reason| Error::format(path, reason))
    }

    /// Reads the text of a `tokenizer.json`, which is all that newer folders have, and the
    /// folder's `tokenizer_config.json` if there is one. `path` is for messages.
    ///
    /// Vocabulary, merges and added tokens are taken from it; the rest is CLIP's, as in transformers.
    pub fn from_json(tokenizer_json: &str, config: Option<&Value>, path: &Path) -> Result<Self> {
        let file: Value =
            serde_json::from_str(tokenizer_json).map_err(|error| Error::format(path, format!("not JSON: {error}")))?;
        let model = &file["model"];
        if model.get("type").is_some_and(|kind| kind != "BPE") {
            let reason = format!("the tokenizer is of type {}, expected \"BPE\"", model["type"]);
            return Err(Error::unsupported(path, reason));
        }
        let config = with_added_tokens(config, &file);
        Self::build(vocab_from_json(&model["vocab"]), merges_from_json(&model["merges"]), Some(&config))
            .map_err(|reason| Error::format(path, reason))
    }

    /// The vocabulary of CLIP itself, with special tokens as in the released Stable Diffusion 1.
    ///
    /// It is what checkpoints in one file were trained with, as they carry none.
    pub fn clip() -> Result<Self> {
        Self::clip_with(None)
    }

    /// As [`Tokenizer::clip`], with a configuration laid over it: `{"pad_token": "!"}` is how the
    /// folders of Stable Diffusion 2 pad.
    pub fn clip_with(config: Option<&Value>) -> Result<Self> {
        let merges = clip_vocab::merges();
        let tokens = clip_vocab::tokens(&merges);
        let vocab = tokens.into_iter().zip(0..).collect();
        let config = merge_special_tokens(Some(&special::released()), config);
        Self::build(Ok(vocab), Ok(merges), Some(&config)).map_err(Error::Internal)
    }

    /// The ids of `text`, without the tokens that begin and end it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self.inner.encode_fast(text, false) {
            Ok(encoding) => Ok(encoding.get_ids().to_vec()),
            Err(error) => Err(Error::Internal(format!("tokenizer: {error}"))),
        }
    }

    /// The token before a text.
    pub fn bos(&self) -> u32 {
        self.bos
    }

    /// The token after a text.
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// The token that fills the rest of a chunk.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// How many rows an embedding table needs for every id: the largest id and one.
    #[allow(clippy::len_without_is_empty)] // a tokenizer without tokens can't be made
    pub fn len(&self) -> usize {
        self.len
    }

    /// `Err` is a clause that says what is wrong.
    fn build(
        vocab: Result<HashMap<String, u32>, String>,
        merges: Result<Vec<(String, String)>, String>,
        config: Option<&Value>,
    ) -> Result<Self, String> {
        let specials = Specials::from_config(config)?;
        let (vocab, merges) = (vocab?, merges?);
        check_merges(&vocab, &merges)?;
        let id = |role: &str, token: &AddedToken| match vocab.get(&token.content) {
            Some(id) => Ok(*id),
            None => added_id(&specials, token)
                .ok_or_else(|| format!("the {role} {:?} is not in the vocabulary", token.content)),
        };
        let bos = id("token before a text", &specials.bos)?;
        let eos = id("token after a text", &specials.eos)?;
        let pad = id("padding", &specials.pad)?;
        id("unknown token", &specials.unknown)?;

        let ids = vocab.values().chain(specials.added.iter().map(|(id, _)| id));
        let len = ids.max().map_or(0, |largest| *largest as usize + 1);
        let inner = assemble(vocab, merges, &specials).map_err(|error| error.to_string())?;
        for (id, token) in &specials.added {
            let found = inner.token_to_id(&token.content);
            if found != Some(*id) {
                let found = found.map_or("none".into(), |found| found.to_string());
                return Err(format!("the token {:?} should have the id {id}, found {found}", token.content));
            }
        }
        Ok(Self { inner, bos, eos, pad, len })
    }
}

/// The same parts, in the same order, as `CLIPTokenizer.__init__`.
fn assemble(
    vocab: HashMap<String, u32>,
    merges: Vec<(String, String)>,
    specials: &Specials,
) -> tokenizers::Result<tokenizers::Tokenizer> {
    let model = BPE::builder()
        .vocab_and_merges(vocab.into_iter().collect::<Vocab>(), merges)
        .unk_token(specials.unknown.content.clone())
        .continuing_subword_prefix(String::new())
        .end_of_word_suffix("</w>".into())
        // The cache is a thread-local that outlives the tokenizer and would keep a dylib mapped.
        .cache_capacity(0)
        .build()?;
    let normalizers: Vec<NormalizerWrapper> =
        vec![NFC.into(), Replace::new(ReplacePattern::Regex(r"\s+".into()), " ")?.into(), Lowercase.into()];
    let words = SplitPattern::Regex(WORDS.into());
    let words = Split::new(words, SplitDelimiterBehavior::Removed, true)?;
    let bytes = ByteLevel::new(false, true, true);

    let mut tokenizer = tokenizers::Tokenizer::new(model);
    tokenizer.with_normalizer(Some(Sequence::new(normalizers)))?;
    tokenizer.with_pre_tokenizer(Some(PreTokenizerSequence::new(vec![words.into(), bytes.into()])));
    let listed = specials.added.iter().map(|(_, token)| token.clone());
    tokenizer.add_tokens(listed)?;
    // A name that is listed keeps what the list says; of names that are the same, the last counts.
    let named = [&specials.bos, &specials.eos, &specials.unknown, &specials.pad];
    let named = named.into_iter().filter(|token| added_id(specials, token).is_none());
    let named = named.map(|token| AddedToken { special: true, ..token.clone() });
    tokenizer.add_special_tokens(named)?;
    Ok(tokenizer)
}

fn added_id(specials: &Specials, token: &AddedToken) -> Option<u32> {
    let listed = specials.added.iter().find(|(_, listed)| listed.content == token.content);
    listed.map(|(id, _)| *id)
}

fn vocab_from_json(json: &Value) -> Result<HashMap<String, u32>, String> {
    let Some(json) = json.as_object() else {
        return Err(format!("the vocabulary is {}, expected an object", kind(json)));
    };
    let mut vocab = HashMap::with_capacity(json.len());
    let mut tokens: HashMap<u32, &str> = HashMap::with_capacity(json.len());
    for (token, id) in json {
        // The largest id must have a successor, see `len`.
        let number = id.as_u64().and_then(|id| u32::try_from(id).ok()).filter(|id| *id < u32::MAX);
        let Some(number) = number else {
            return Err(format!("the vocabulary gives {token:?} the id {id}, expected a whole number"));
        };
        if let Some(other) = tokens.insert(number, token) {
            return Err(format!("the vocabulary gives {other:?} and {token:?} the same id {number}"));
        }
        vocab.insert(token.clone(), number);
    }
    Ok(vocab)
}

/// Pairs, one a line, after a heading that some files lack.
fn merges_from_text(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut merges = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if line.is_empty() || (number == 0 && line.contains("#version:")) {
            continue;
        }
        merges.push(pair(line).ok_or_else(|| format!("line {} of the merges is not a pair", number + 1))?);
    }
    Ok(merges)
}

/// Pairs, as `"a b"` or `["a", "b"]`.
fn merges_from_json(json: &Value) -> Result<Vec<(String, String)>, String> {
    let Some(json) = json.as_array() else {
        return Err(format!("the merges are {}, expected a list", kind(json)));
    };
    let from_value = |value: &Value| match value.as_array().map(Vec::as_slice) {
        Some([left, right]) => Some((left.as_str()?.into(), right.as_str()?.into())),
        Some(_) => None,
        None => pair(value.as_str()?),
    };
    let numbered = json.iter().enumerate();
    numbered.map(|(at, value)| from_value(value).ok_or_else(|| format!("merge {at} is not a pair"))).collect()
}

fn pair(line: &str) -> Option<(String, String)> {
    let (left, right) = line.split_once(' ')?;
    let whole = !left.is_empty() && !right.is_empty() && !right.contains(' ');
    whole.then(|| (left.into(), right.into()))
}

/// Every part and every product of a merge must be a token; the library indexes by it.
fn check_merges(vocab: &HashMap<String, u32>, merges: &[(String, String)]) -> Result<(), String> {
    let mut merged = String::new();
    for (left, right) in merges {
        merged.clear();
        merged.push_str(left);
        merged.push_str(right);
        for token in [left, right, &merged] {
            if !vocab.contains_key(token) {
                return Err(format!(
                    "the merge of {left:?} and {right:?} needs {token:?}, which is not in the vocabulary"
                ));
            }
        }
    }
    Ok(())
}

/// `config` with the added tokens of a `tokenizer.json`, unless it lists its own.
fn with_added_tokens(config: Option<&Value>, file: &Value) -> Value {
    let mut config = config.and_then(Value::as_object).cloned().unwrap_or_default();
    if let (None, Some(added)) = (config.get("added_tokens_decoder"), file["added_tokens"].as_array()) {
        let by_id = added.iter().map(|token| (token["id"].to_string(), token.clone()));
        config.insert("added_tokens_decoder".into(), by_id.collect());
    }
    Value::Object(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const VOCAB: &str = r#"{"a":0,"b":1,"a</w>":2,"b</w>":3,"ab</w>":4,"<|startoftext|>":5,"<|endoftext|>":6}"#;

    fn refused(vocab: &str, merges: &str, config: Value) -> String {
        match Tokenizer::from_files(vocab, merges, Some(&config), Path::new("tok")) {
            Ok(_) => panic!("{vocab} {merges} {config} was accepted"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn small_vocabulary() {
        let tokenizer = Tokenizer::from_files(VOCAB, "#version: 0.2\na b</w>\n", None, Path::new("tok")).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.pad(), tokenizer.len()), (5, 6, 6, 7));
        // "c" is in no token, so it is the unknown token.
        assert_eq!(tokenizer.encode("AB a\tBab c").unwrap(), [4, 2, 1, 4, 6]);
        assert!(tokenizer.encode("").unwrap().is_empty());

        let json = json!({"model": {"type": "BPE", "vocab": serde_json::from_str::<Value>(VOCAB).unwrap(), "merges": [["a", "b</w>"]]}});
        let from_json = Tokenizer::from_json(&json.to_string(), None, Path::new("tok")).unwrap();
        assert_eq!(from_json.encode("ab").unwrap(), [4]);
    }

    #[test]
    fn clip_matches_transformers() {
        // python: CLIPTokenizer(…)("…", add_special_tokens=False).input_ids
        let tokenizer = Tokenizer::clip().unwrap();
        let check = |text: &str, expected: &[u32]| assert_eq!(tokenizer.encode(text).unwrap(), expected, "{text:?}");
        assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.pad(), tokenizer.len()), (49406, 49407, 49407, 49408));
        check("a photo of a cat!", &[320, 1125, 539, 320, 2368, 256]);
        check("wow! <|endoftext|>x", &[2781, 256, 49407, 343]);
        check("<|STARTOFTEXT|>", &[49406]);
        let padded = Tokenizer::clip_with(Some(&json!({"pad_token": "!"}))).unwrap();
        assert_eq!(padded.encode("wow!").unwrap(), [2781, 0]);
    }

    #[test]
    fn malformed_files_are_refused() {
        let none = || json!({});
        assert!(refused("{", "", none()).starts_with("tok: the vocabulary is not JSON"));
        assert!(refused(&"[".repeat(100_000), "", none()).contains("recursion"));
        assert_eq!(refused("[]", "", none()), "tok: the vocabulary is a list, expected an object");
        assert!(refused("{}", "", none()).contains(r#""<|startoftext|>" is not in the vocabulary"#));
        assert!(refused(r#"{"a":-1}"#, "", none()).contains("the id -1"));
        assert!(refused(r#"{"a":1.5}"#, "", none()).contains("the id 1.5"));
        assert!(refused(r#"{"a":4294967295}"#, "", none()).contains("the id 4294967295"));
        assert!(refused(r#"{"a":1,"b":1}"#, "", none()).contains("the same id 1"));
        assert!(refused(VOCAB, "a", none()).contains("line 1 of the merges is not a pair"));
        assert!(refused(VOCAB, "#version\na b c", none()).contains("line 1 of the merges"));
        assert!(refused(VOCAB, "#version: 0.2\na b c", none()).contains("line 2 of the merges"));
        assert!(refused(VOCAB, "a b", none()).contains(r#"needs "ab""#));
        assert!(refused(VOCAB, "a b</w>", json!({"pad_token": "!"})).contains(r#"padding "!" is not"#));
        assert!(refused(VOCAB, "", json!({"pad_token": 3})).contains("pad_token is a number"));
        assert!(refused(VOCAB, "", json!({"pad_token": ""})).contains("pad_token is empty"));
        assert!(refused(VOCAB, "", json!({"added_tokens_decoder": []})).contains("is not an object"));
        assert!(refused(VOCAB, "", json!({"added_tokens_decoder": {"x": "a"}})).contains(r#"the id "x""#));
        assert!(
            refused(VOCAB, "", json!({"added_tokens_decoder": {"9": "new"}})).contains("should have the id 9, found 7")
        );
        let kind = Tokenizer::from_json(r#"{"model":{"type":"Unigram"}}"#, None, Path::new("tok"));
        assert!(kind.err().unwrap().to_string().contains(r#"type "Unigram""#));
        for json in ["[]", "{}", "null", r#"{"model":3}"#, r#"{"model":{"vocab":{"a":0},"merges":[1]}}"#] {
            assert!(Tokenizer::from_json(json, None, Path::new("tok")).is_err(), "{json}");
        }
    }

    #[test]
    fn long_words_take_little_time() {
        let tokenizer = Tokenizer::clip().unwrap();
        for word in ["a", "é", "!", " ", "\u{301}", "1", "' ", "a\u{301}\u{327}", "<|endoftext|>", "\n a"] {
            tokenizer.encode(&word.repeat(65536 / word.len())).unwrap();
        }
    }
}
