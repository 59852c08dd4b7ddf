//! The one error type of the engine.
//!
//! Each variant says what was wrong, with which file, tensor or field, what was expected and what
//! was found, so that a host can show the text as it stands.

use std::fmt;
use std::path::PathBuf;

/// What the engine's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused to open, read or write a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },

    /// A file is not what its format demands: truncated, contradictory, or of another kind.
    #[error("{}: {reason}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// One clause that says what is wrong and where.
        reason: String,
    },

    /// A file is well formed, but of a kind, family or type that is not supported.
    #[error("{}: {reason}", path.display())]
    Unsupported {
        /// The file or folder.
        path: PathBuf,
        /// What was found, and what would be accepted.
        reason: String,
    },

    /// A network needs a tensor that its file does not have.
    #[error("{}: tensor {name} is missing, expected shape {expected:?}", path.display())]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor's name, as the file's layout spells it where that is known.
        name: String,
        /// Its shape in the file's order, slowest dimension first; empty when unknown.
        expected: Vec<usize>,
    },

    /// A tensor has another shape than the rest of its network implies.
    #[error("{}: tensor {name} has the wrong shape, expected {expected:?}, found {found:?}", path.display())]
    WrongShape {
        /// The file or folder.
        path: PathBuf,
        /// The tensor's name, as the file's layout spells it where that is known.
        name: String,
        /// The expected shape, slowest dimension first.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },

    /// A request asks for something that cannot be: a size of 0, a strength that is not a number.
    #[error("{field}: {reason}")]
    InvalidRequest {
        /// The field of the request, in the spelling of [`crate::request::Request`].
        field: &'static str,
        /// What is wrong with its value, and what would be accepted.
        reason: String,
    },

    /// The work would need more memory than there is.
    #[error("out of memory: {what} needs {needed_bytes} bytes{}", shown_available(.available_bytes))]
    OutOfMemory {
        /// What the memory was for.
        what: String,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes available, where that was asked.
        available_bytes: Option<u64>,
    },

    /// The caller cancelled. Nothing is wrong, and the engine can be used again.
    #[error("cancelled")]
    Cancelled,

    /// A computation gave NaN or infinity.
    #[error("{0} gave values that are not finite")]
    NotFinite(Computation),

    /// A model's sizes or settings contradict one another, or are of no supported kind.
    #[error("{0}")]
    Model(String),

    /// The tensor library refused a graph: a fault of the engine, told instead of an abort.
    #[error("internal: {0}")]
    Graph(ggml::Error),

    /// A fault of the engine that no input should be able to cause.
    #[error("internal: {0}")]
    Internal(String),
}

/// What can give values that are not finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Computation {
    /// A step of sampling.
    Step {
        /// Which, from 1.
        step: usize,
        /// How many there are.
        of: usize,
    },
    /// The autoencoder's way from latents to pictures.
    Decoding,
}

impl fmt::Display for Computation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step { step, of } => write!(f, "step {step} of {of}"),
            Self::Decoding => f.write_str("decoding"),
        }
    }
}

fn shown_available(bytes: &Option<u64>) -> String {
    bytes.map_or_else(String::new, |bytes| format!(", {bytes} are available"))
}

impl From<ggml::Error> for Error {
    fn from(error: ggml::Error) -> Self {
        match error {
            ggml::Error::Stopped => Self::Cancelled,
            ggml::Error::Alloc { what, bytes } => {
                Self::OutOfMemory { what: what.into(), needed_bytes: bytes as u64, available_bytes: None }
            }
            error => Self::Graph(error),
        }
    }
}

impl Error {
    /// An [`Error::Model`].
    pub fn config(reason: impl Into<String>) -> Self {
        Self::Model(reason.into())
    }

    /// An [`Error::Io`] for `path`.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Self::Io { path: path.into(), source }
    }

    /// An [`Error::Format`] for `path`.
    pub fn format(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Format { path: path.into(), reason: reason.into() }
    }

    /// An [`Error::Unsupported`] for `path`.
    pub fn unsupported(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Unsupported { path: path.into(), reason: reason.into() }
    }

    /// An [`Error::InvalidRequest`] for `field`.
    pub fn invalid(field: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidRequest { field, reason: reason.into() }
    }
}
