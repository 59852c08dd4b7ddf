//! JSON that is not believed: bounded, without repeated keys, with errors that name the file.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::Value;

use super::source;
use crate::{Error, Result};

/// Longer than any configuration by far.
const CONFIG_LIMIT_BYTES: u64 = 16 << 20;

/// A JSON object that describes a part of a model (`config.json`, `scheduler_config.json`, or
/// the same text in a file's metadata).
///
/// It dereferences to its [`Value`]; the typed getters are `None` where a key is absent or null
/// and an error where the key holds something of another type.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    path: PathBuf,
    value: Value,
}

impl Config {
    /// Parses `text`; `path` is only for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Config> {
        let value: Value = serde_json::from_str(&without_infinities(text))
            .map_err(|e| Error::format(path, format!("not valid JSON: {}", shown(&e.to_string()))))?;
        if !value.is_object() {
            let reason = format!("the JSON is {}, expected an object", kind(&value));
            return Err(Error::format(path, reason));
        }
        Ok(Config { path: path.to_owned(), value })
    }

    /// Reads and parses a file; `None` if there is none.
    pub(super) fn read_if_exists(path: &Path) -> Result<Option<Config>> {
        if !path.exists() {
            return Ok(None);
        }
        let text = source::read_text(path, CONFIG_LIMIT_BYTES)?;
        Config::parse(path, &text).map(Some)
    }

    /// What is put together from several files.
    pub(super) fn from_value(path: &Path, value: Value) -> Config {
        Config { path: path.to_owned(), value }
    }

    /// Where it stands, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A whole number, not negative.
    pub fn usize(&self, key: &str) -> Result<Option<usize>> {
        self.typed(key, "a whole number", as_usize)
    }

    /// A finite number.
    pub fn f64(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a number", |value| value.as_f64().filter(|number| number.is_finite()))
    }

    /// A truth value.
    pub fn bool(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    /// A text.
    pub fn str(&self, key: &str) -> Result<Option<&str>> {
        self.typed(key, "a text", Value::as_str)
    }

    /// A list of whole numbers; a single number is a list of one.
    pub fn usizes(&self, key: &str) -> Result<Option<Vec<usize>>> {
        self.typed(key, "a whole number or a list of them", |value| match value {
            Value::Array(items) => items.iter().map(as_usize).collect(),
            single => Some(vec![as_usize(single)?]),
        })
    }

    /// A list of numbers.
    pub fn f64s(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.typed(key, "a list of numbers", |value| value.as_array()?.iter().map(Value::as_f64).collect())
    }

    /// A list of texts.
    pub fn strs(&self, key: &str) -> Result<Option<Vec<&str>>> {
        self.typed(key, "a list of texts", |value| value.as_array()?.iter().map(Value::as_str).collect())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.value.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => read(value).map(Some).ok_or_else(|| {
                let found = shown(&value.to_string());
                Error::format(&self.path, format!("{key} is {found}, expected {expected}"))
            }),
        }
    }
}

impl Deref for Config {
    type Target = Value;

    fn deref(&self) -> &Value {
        &self.value
    }
}

fn as_usize(value: &Value) -> Option<usize> {
    usize::try_from(value.as_u64()?).ok()
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a truth value",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Python writes `NaN`, `Infinity` and `-Infinity` into JSON, which knows none of them (diffusers'
/// `DPMSolverMultistepScheduler` does): outside of texts they become null here.
fn without_infinities(text: &str) -> Cow<'_, str> {
    if !text.contains("NaN") && !text.contains("Infinity") {
        return Cow::Borrowed(text);
    }
    let nulls = |text: &str| text.replace("-Infinity", "null").replace("Infinity", "null").replace("NaN", "null");
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(quote) = rest.find('"') {
        let (outside, string) = rest.split_at(quote);
        clean.push_str(&nulls(outside));
        let mut escaped = false;
        let end = string[1..].char_indices().find(|&(_, c)| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let end = end.map_or(string.len(), |(at, _)| at + 2);
        clean.push_str(&string[..end]);
        rest = &string[end..];
    }
    clean.push_str(&nulls(rest));
    Cow::Owned(clean)
}

/// Text from a file as an error message shows it: on one line and not long.
pub(super) fn shown(text: &str) -> String {
    const LIMIT_CHARS: usize = 160;
    let mut short: String = text.chars().take(LIMIT_CHARS).collect();
    if short.len() < text.len() {
        short.push('…');
    }
    if short.chars().any(char::is_control) { short.escape_debug().to_string() } else { short }
}

/// The members of a JSON object in their order. A key that stands there twice is an error, and
/// so is one that is no plain name; an error in a value names its key.
pub(super) struct UniqueMap<V>(pub(super) Vec<(String, V)>);

/// A value of a [`UniqueMap`]; its type may depend on its key.
pub(super) trait Keyed: Sized {
    fn read<'de, A: MapAccess<'de>>(key: &str, map: &mut A) -> Result<Self, A::Error>;
}

impl Keyed for String {
    fn read<'de, A: MapAccess<'de>>(_key: &str, map: &mut A) -> Result<Self, A::Error> {
        map.next_value()
    }
}

/// Longer than any tensor's name by far.
const KEY_LIMIT_BYTES: usize = 1024;

impl<'de, V: Keyed> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueMapVisitor(PhantomData))
    }
}

struct UniqueMapVisitor<V>(PhantomData<V>);

impl<'de, V: Keyed> Visitor<'de> for UniqueMapVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut members: Vec<(String, V)> = Vec::new();
        let mut keys = HashSet::new();
        while let Some(key) = map.next_key::<String>()? {
            if key.is_empty() || key.len() > KEY_LIMIT_BYTES || key.contains(char::is_control) {
                let reason = "a name is empty, longer than 1024 bytes, or holds control characters";
                return Err(A::Error::custom(format!("{reason}: \"{}\"", shown(&key))));
            }
            if !keys.insert(key.clone()) {
                return Err(A::Error::custom(format!("{} is there twice", shown(&key))));
            }
            let value = V::read(&key, &mut map)
                .map_err(|e| A::Error::custom(format!("{}: {}", shown(&key), shown(&e.to_string()))))?;
            members.push((key, value));
        }
        Ok(UniqueMap(members))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse(Path::new("config.json"), text)
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn getters_tell_absent_from_wrong() {
        let config = parse(r#"{"a": 3, "b": [1, 2], "c": null, "d": "x", "e": 0.5}"#).unwrap();
        assert_eq!(config.usize("a").unwrap(), Some(3));
        assert_eq!(config.usize("c").unwrap(), None);
        assert_eq!(config.usize("missing").unwrap(), None);
        assert_eq!(config.usizes("a").unwrap(), Some(vec![3]));
        assert_eq!(config.usizes("b").unwrap(), Some(vec![1, 2]));
        assert_eq!(config.f64("e").unwrap(), Some(0.5));
        assert_eq!(config.f64s("b").unwrap(), Some(vec![1.0, 2.0]));
        assert_eq!(config.str("d").unwrap(), Some("x"));
        assert_eq!(config["a"], 3);
        let error = config.usize("d").unwrap_err().to_string();
        assert_eq!(error, "config.json: d is \"x\", expected a whole number");
        assert!(config.usize("e").is_err() && config.bool("a").is_err() && config.strs("b").is_err());
    }

    #[test]
    fn what_is_no_object_is_an_error() {
        assert_eq!(error("[1]"), "config.json: the JSON is a list, expected an object");
        assert!(error("").starts_with("config.json: not valid JSON: EOF"));
        assert!(error("{\"a\": ").starts_with("config.json: not valid JSON: EOF"));
        let deep = "[".repeat(100_000);
        assert!(error(&deep).starts_with("config.json: not valid JSON: recursion limit exceeded"));
        assert!(error(&format!("{{\"a\":{deep}")).contains("recursion limit exceeded"));
    }

    #[test]
    fn messages_stay_on_one_short_line() {
        assert_eq!(shown("plain"), "plain");
        assert_eq!(shown("two\nlines\u{1b}[2J"), "two\\nlines\\u{1b}[2J");
        assert_eq!(shown(&"x".repeat(1000)).chars().count(), 161);
    }

    #[test]
    fn repeated_and_strange_keys_are_refused() {
        let check = |text: &str| {
            serde_json::from_str::<UniqueMap<String>>(text).map(|map| map.0.len()).map_err(|e| e.to_string())
        };
        assert_eq!(check(r#"{"a": "x", "b": ""}"#), Ok(2));
        assert_eq!(check(r#"{"a": "", "a": ""}"#).unwrap_err(), "a is there twice at line 1 column 13");
        assert!(check(r#"{"": ""}"#).unwrap_err().starts_with("a name is empty"));
        assert!(check(r#"{"a\u0007": ""}"#).unwrap_err().starts_with("a name is empty"));
        assert!(check(r#"{"a": 1}"#).unwrap_err().starts_with("a: invalid type: integer"));
    }
}
