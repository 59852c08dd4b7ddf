//! ggml's remote back end: graphs run on another machine.
//!
//! Only for machines and networks that are trusted: the protocol knows neither passwords nor
//! encryption, and ggml gives up (see [`crate::abort`]) when a server goes away or answers nonsense
//! once it has been added.

use std::ffi::CString;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use crate::{Error, Result, log, sys};

/// How long a server may take to answer when it is added.
const PATIENCE: Duration = Duration::from_secs(5);

/// Adds the devices of the server at `endpoint`, `host:port`, to those that [`crate::devices`] lists,
/// with the endpoint as their description. Adding a server again changes nothing.
///
/// # Errors
/// When nobody answers there, or not in ggml's protocol of this version.
pub fn add_rpc_server(endpoint: &str) -> Result<()> {
    log::install();
    let failed = |reason: String| Error::Backend(format!("the server at {endpoint}: {reason}"));
    let c_endpoint = CString::new(endpoint).map_err(|_| failed("a name with a NUL".into()))?;
    let c_name = CString::new(format!("RPC[{endpoint}]")).map_err(|_| failed("a name with a NUL".into()))?;
    // SAFETY: the name is NUL-terminated.
    if !unsafe { sys::ggml_backend_reg_by_name(c_name.as_ptr()) }.is_null() {
        return Ok(());
    }
    // ggml aborts when it can't connect or is not understood, so it is tried first.
    greet(endpoint).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the endpoint is NUL-terminated and copied; the registry takes what is not null.
    unsafe {
        let registry = sys::ggml_backend_rpc_add_server(c_endpoint.as_ptr());
        if registry.is_null() {
            return Err(failed("it has no devices".into()));
        }
        sys::ggml_backend_register(registry);
    }
    Ok(())
}

/// The protocol's first exchange.
fn greet(endpoint: &str) -> std::io::Result<()> {
    const HELLO: u8 = 14;
    const CAPABILITIES: usize = 24;
    let invalid = |reason: String| std::io::Error::new(std::io::ErrorKind::InvalidData, reason);
    let (_, port) = endpoint.split_once(':').ok_or_else(|| invalid("not of the form host:port".into()))?;
    // ggml takes the port for a number and ends the host at the first colon.
    port.parse::<u16>().map_err(|_| invalid(format!("{port} is no port")))?;
    let mut last = invalid("a name without an address".into());
    let connected = endpoint
        .to_socket_addrs()?
        .filter(|address| address.is_ipv4())
        .find_map(|address| TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| last = error).ok());
    let mut stream = connected.ok_or(last)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = vec![HELLO];
    request.extend((CAPABILITIES as u64).to_le_bytes());
    request.extend([0; CAPABILITIES]);
    stream.write_all(&request)?;
    let mut answer = [0; 8 + 4 + CAPABILITIES];
    stream.read_exact(&mut answer)?;
    let (size, version) = (&answer[..8], &answer[8..11]);
    let ours = [sys::RPC_PROTO_MAJOR_VERSION as u8, sys::RPC_PROTO_MINOR_VERSION as u8];
    if size != ((4 + CAPABILITIES) as u64).to_le_bytes() || version[0] != ours[0] || version[1] > ours[1] {
        return Err(invalid(format!("it speaks another protocol than {}.{}", ours[0], ours[1])));
    }
    Ok(())
}

/// Serves this machine's processor at `endpoint` with `threads` threads, one client after another,
/// until the process ends. ggml tells about it on standard output.
///
/// # Errors
/// When the endpoint can't be served.
pub fn serve(endpoint: &str, threads: usize) -> Result<()> {
    log::install();
    let c_endpoint = CString::new(endpoint).map_err(|_| Error::Backend("a name with a NUL".into()))?;
    // SAFETY: the endpoint is NUL-terminated; one device is passed, which is a constant of ggml.
    unsafe {
        let mut device = sys::ggml_backend_dev_by_type(sys::GGML_BACKEND_DEVICE_TYPE_CPU);
        if !device.is_null() {
            let threads = threads.clamp(1, crate::backend::MAX_THREADS);
            sys::ggml_backend_rpc_start_server(c_endpoint.as_ptr(), std::ptr::null(), threads, 1, &mut device);
        }
    }
    Err(Error::Backend(format!("{endpoint} could not be served")))
}
