//! What a node was told when it was run the first time: a file in its directory, `node.json`.

use caliburn_dist::data_server::Environment;
use caliburn_tools::Failure;
use clap::Args;
use serde_json::{Value, json};
use std::io::{BufRead, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const FILE: &str = "node.json";

/// What a node can be told.
#[derive(Args, Debug)]
pub struct Told {
    /// The cluster's name.
    #[arg(long)]
    cluster: Option<String>,
    /// The node's number in the cluster.
    #[arg(long)]
    number: Option<u64>,
    /// Where the node serves, such as 127.0.0.1:4100.
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// Members of etcd, which keep names, slots and epochs.
    #[arg(long, value_delimiter = ',', value_name = "ADDRESS")]
    etcd: Vec<String>,
    /// A file of nodes, in place of etcd: a line each, `number address server ...`.
    #[arg(long, value_name = "FILE")]
    nodes: Option<PathBuf>,
    /// PEM file: the certificate of the authority.
    #[arg(long, value_name = "FILE", requires_all = ["certificate", "key"])]
    authority: Option<PathBuf>,
    /// PEM file: the node's certificate. Without, only programs on this machine are served.
    #[arg(long, value_name = "FILE", requires_all = ["authority", "key"])]
    certificate: Option<PathBuf>,
    /// PEM file: the key of that.
    #[arg(long, value_name = "FILE", requires_all = ["authority", "certificate"])]
    key: Option<PathBuf>,
    /// PEM file: the certificate of the authority that etcd's certificates are of. It should be another one than
    /// that of users, who could write to etcd otherwise.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_certificate", "etcd_key"])]
    etcd_authority: Option<PathBuf>,
    /// PEM file: what the node, and its data servers, show etcd.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_authority", "etcd_key"])]
    etcd_certificate: Option<PathBuf>,
    /// PEM file: the key of that.
    #[arg(long, value_name = "FILE", requires_all = ["etcd_authority", "etcd_certificate"])]
    etcd_key: Option<PathBuf>,
    /// Whether transactions have timestamps: no, if no program of the cluster asks for them. The same at all nodes.
    /// Without, a node whose clock was once ahead is not refused.
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    timestamps: Option<bool>,
    /// The user who may do everything, and gives others rights.
    #[arg(long, value_name = "USER")]
    administrator: Option<String>,
}

/// What a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Configuration {
    pub cluster: String,
    pub number: u64,
    listen: SocketAddr,
    etcd: Vec<String>,
    nodes: Option<PathBuf>,
    certificates: Option<[PathBuf; 3]>,
    etcd_certificates: Option<[PathBuf; 3]>,
    timestamps: bool,
    administrator: Option<String>,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("yes or no".into()),
    }
}

fn path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Asks whoever sits there; an error where nobody does.
fn ask<T: std::str::FromStr>(option: &str, question: &str) -> Result<T, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(format!("a node that is run for the first time is told --{option}").into());
    }
    loop {
        print!("{question}: ");
        std::io::stdout().flush()?;
        let mut line = String::new();
        if std::io::stdin().lock().read_line(&mut line)? == 0 {
            return Err(format!("--{option} was not told").into());
        }
        match line.trim().parse() {
            Ok(value) => return Ok(value),
            Err(_) => println!("{:?} can't be that", line.trim()),
        }
    }
}

impl Configuration {
    /// What the node in a directory was told.
    pub fn read(directory: &Path) -> Result<Configuration, Failure> {
        let file = directory.join(FILE);
        let text = std::fs::read_to_string(&file).map_err(|error| {
            format!(
                "{}: {error}; is this the directory of a node? It is made by caliburn-node run",
                file.display()
            )
        })?;
        let value: Value =
            serde_json::from_str(&text).map_err(|error| format!("{}: {error}", file.display()))?;
        let wrong = |what: &str| format!("{}: {what:?} is missing, or not what it should be", file.display());
        let string = |name: &str| match &value[name] {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text.clone())),
            _ => Err(wrong(name)),
        };
        let need = |name: &str| string(name)?.ok_or_else(|| wrong(name));
        if value["version"] != 1 {
            return Err(format!("{}: it was made by another version", file.display()).into());
        }
        let etcd = value["etcd"].as_array().ok_or_else(|| wrong("etcd"))?.iter();
        let files = |name: &str| match &value[name] {
            Value::Null => Ok(None),
            Value::Array(files) => {
                let files: Option<Vec<PathBuf>> =
                    files.iter().map(|file| file.as_str().map(PathBuf::from)).collect();
                let files: Option<[PathBuf; 3]> = files.and_then(|files| files.try_into().ok());
                files.map(Some).ok_or_else(|| wrong(name))
            }
            _ => Err(wrong(name)),
        };
        Ok(Configuration {
            cluster: need("cluster")?,
            number: value["number"].as_u64().ok_or_else(|| wrong("number"))?,
            listen: need("listen")?.parse().map_err(|_| wrong("listen"))?,
            etcd: etcd
                .map(|member| member.as_str().map(str::to_owned).ok_or_else(|| wrong("etcd")))
                .collect::<Result<_, _>>()?,
            nodes: string("nodes")?.map(PathBuf::from),
            certificates: files("certificates")?,
            etcd_certificates: files("etcd_certificates")?,
            // Not there in what was written before there was a choice.
            timestamps: value["timestamps"] != false,
            administrator: string("administrator")?,
        })
    }

    /// What it was told before, and is told now. What differs is refused, unless it is to replace that.
    pub fn of(directory: &Path, told: &Told, replaces: bool) -> Result<Configuration, Failure> {
        let absolute = |file: &Option<PathBuf>| file.as_ref().map(std::path::absolute).transpose();
        let before = if directory.join(FILE).exists() { Some(Configuration::read(directory)?) } else { None };
        let mut next = match &before {
            Some(before) => before.clone(),
            None => Configuration {
                cluster: told.cluster.clone().map_or_else(|| ask("cluster", "Name of the cluster"), Ok)?,
                number: told.number.map_or_else(|| ask("number", "Number of this node in it"), Ok)?,
                listen: told
                    .listen
                    .map_or_else(|| ask("listen", "Where it serves, such as 127.0.0.1:4100"), Ok)?,
                etcd: Vec::new(),
                nodes: None,
                certificates: None,
                etcd_certificates: None,
                timestamps: true,
                administrator: None,
            },
        };
        next.cluster = told.cluster.clone().unwrap_or(next.cluster);
        next.number = told.number.unwrap_or(next.number);
        next.listen = told.listen.unwrap_or(next.listen);
        if !told.etcd.is_empty() {
            next.etcd.clone_from(&told.etcd);
        }
        next.nodes = absolute(&told.nodes)?.or(next.nodes);
        if let (Some(a), Some(c), Some(k)) =
            (absolute(&told.authority)?, absolute(&told.certificate)?, absolute(&told.key)?)
        {
            next.certificates = Some([a, c, k]);
        }
        if let (Some(a), Some(c), Some(k)) =
            (absolute(&told.etcd_authority)?, absolute(&told.etcd_certificate)?, absolute(&told.etcd_key)?)
        {
            next.etcd_certificates = Some([a, c, k]);
        }
        next.timestamps = told.timestamps.unwrap_or(next.timestamps);
        next.administrator = told.administrator.clone().or(next.administrator);
        if let Some(before) = before {
            // Who it is can't change: others know it, and its store remembers what it has decided as that.
            if (&before.cluster, before.number) != (&next.cluster, next.number) {
                let (cluster, number) = (&before.cluster, before.number);
                return Err(format!("this is node {number} of cluster {cluster:?}, and stays that: make another one in another directory").into());
            }
            if !replaces && before != next {
                let file = directory.join(FILE);
                return Err(format!(
                    "the node was told otherwise before ({}): --config replaces that",
                    file.display()
                )
                .into());
            }
        }
        next.check()?;
        Ok(next)
    }

    /// What can be seen to be wrong before it is tried.
    fn check(&self) -> Result<(), Failure> {
        if self.cluster.is_empty() || self.number == 0 {
            return Err("a cluster has a name, and its nodes numbers from 1 on".into());
        }
        match (&self.certificates, &self.administrator) {
            (Some(_), None) => Err("name the user who may administer the node: --administrator".into()),
            _ => Ok(()),
        }
    }

    /// Whole, or not at all.
    pub fn write(&self, directory: &Path) -> Result<(), Failure> {
        if Configuration::read(directory).is_ok_and(|there| there == *self) {
            return Ok(());
        }
        let files = |files: &Option<[PathBuf; 3]>| {
            files.as_ref().map(|files| files.iter().map(|file| path(file)).collect::<Vec<_>>())
        };
        let (certificates, etcd) = (files(&self.certificates), files(&self.etcd_certificates));
        let value = json!({"version": 1, "cluster": self.cluster, "number": self.number,
            "listen": self.listen.to_string(), "etcd": self.etcd, "nodes": self.nodes.as_deref().map(path),
            "certificates": certificates, "etcd_certificates": etcd, "timestamps": self.timestamps, "administrator": self.administrator});
        let (file, new) = (directory.join(FILE), directory.join("node.json.new"));
        let mut written = std::fs::File::create(&new)?;
        written.write_all(format!("{value:#}\n").as_bytes())?;
        written.sync_all()?;
        std::fs::rename(&new, &file)?;
        std::fs::File::open(directory)?.sync_all()?;
        Ok(())
    }

    /// How it is reached.
    pub fn address(&self) -> String {
        format!("{}://{}", if self.certificates.is_some() { "https" } else { "http" }, self.listen)
    }

    pub fn authority(&self) -> Option<PathBuf> {
        self.certificates.as_ref().map(|[authority, ..]| authority.clone())
    }

    /// For whoever runs it.
    pub fn describe(&self) -> String {
        let Configuration { cluster, number, .. } = self;
        let whom = match &self.certificates {
            Some(_) => "whoever has a certificate of its authority",
            None => "programs on this machine only, since it has no certificate",
        };
        format!("node {number} of cluster {cluster:?} at {}, for {whom}", self.address())
    }

    pub fn to_environment(&self, directory: &Path) -> Result<(Environment, Option<String>), Failure> {
        let store = std::path::absolute(directory)?;
        if store.to_str().is_none() {
            return Err(
                format!("{}: servers are told this path, so it must be UTF-8", store.display()).into()
            );
        }
        let environment = Environment {
            name: "node".into(),
            cluster: self.cluster.clone(),
            number: self.number,
            store,
            listen: Some(self.listen),
            etcd: self.etcd.clone(),
            nodes: self.nodes.clone(),
            certificates: self.certificates.clone(),
            etcd_certificates: self.etcd_certificates.clone(),
            without_timestamps: !self.timestamps,
            ..Environment::default()
        };
        Ok((environment, self.administrator.clone()))
    }
}
