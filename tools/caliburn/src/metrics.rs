//! `metrics`: what a store in use tells of itself, for monitoring.

use caliburn_tools::Failure;
use caliburn_tools::told::told;
use clap::Args;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `metrics`.
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directories of stores that programs are using.
    #[arg(required = true)]
    stores: Vec<PathBuf>,
    /// Serve them by HTTP at this address, as 127.0.0.1:9200, at any path, until interrupted.
    #[arg(long, value_name = "ADDRESS")]
    serve: Option<String>,
}

/// Prints metrics in the text format of Prometheus, or serves them.
pub fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let Some(address) = &arguments.serve else {
        print!("{}", all(&arguments.stores)?);
        return Ok(ExitCode::SUCCESS);
    };
    let listener = TcpListener::bind(address).map_err(|e| format!("{address}: {e}"))?;
    eprintln!("serving at http://{}/metrics", listener.local_addr()?);
    for stream in listener.incoming() {
        let stores = arguments.stores.clone();
        // One that is slow holds up nobody else.
        std::thread::spawn(move || {
            if let Err(error) = stream.and_then(|stream| answer(stream, &stores)) {
                eprintln!("caliburn: {error}");
            }
        });
    }
    Ok(ExitCode::SUCCESS)
}

/// Answers a request, whatever it asks for.
fn answer(mut stream: TcpStream, stores: &[PathBuf]) -> io::Result<()> {
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(5));
    const REQUEST_MAX: u64 = 16 << 10;
    stream.set_read_timeout(PATIENCE)?;
    stream.set_write_timeout(PATIENCE)?;
    let mut lines = BufReader::new(stream.try_clone()?.take(REQUEST_MAX)).lines();
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let (status, text) = match all(stores) {
        Ok(text) => ("200 OK", text),
        Err(error) => ("503 Service Unavailable", format!("{error}\n")),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())
}

/// What all of them tell: the lines of one metric stand together.
fn all(stores: &[PathBuf]) -> Result<String, Failure> {
    let mut metrics: Vec<(String, String)> = Vec::new();
    for store in stores {
        let told = told(store)?;
        for metric in told.prometheus.split("# HELP ").skip(1) {
            let description: String = metric.split_inclusive('\n').take(2).collect();
            let values = &metric[description.len()..];
            match metrics.iter_mut().find(|(known, _)| *known == description) {
                Some((_, all)) => all.push_str(values),
                None => metrics.push((description, values.to_owned())),
            }
        }
    }
    Ok(metrics.iter().map(|(description, values)| format!("# HELP {description}{values}")).collect())
}
