//! Who a node or a program is, and how others know: certificates of one authority, in both directions (mutual TLS).
//!
//! ```text
//!   node-3.bank          node 3 of cluster "bank"           names of the certificate
//!   alice.user.bank      user "alice" of that cluster       (DNS, subject alternative)
//! ```
//!
//! A name says nothing of where somebody is: a node keeps its certificate when it moves.

use crate::commit::word::Node;
use caliburn_os::descriptors;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem as Block;

/// A certificate with its key, and the authority that made those of the cluster. Clones are the same.
#[derive(Clone)]
pub struct Credentials(Arc<Pem>);

struct Pem {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// Why there are no credentials.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CredentialsError {
    /// A file.
    #[error("{0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// What should be one, and is not.
    #[error("{} has no {what}: it should be a PEM file with a line \"-----BEGIN ...{what}-----\"", path.display())]
    NoPem {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        what: &'static str,
    },
    /// A certificate that is none, as far as can be told.
    #[error("{0}: {1}")]
    Damaged(PathBuf, String),
    /// A certificate that nobody takes for valid today.
    #[error("{}: the certificate is valid from {from} to {until}, and it is {now} here", path.display())]
    NotValid {
        /// The file.
        path: PathBuf,
        /// The first moment.
        from: String,
        /// The last one.
        until: String,
        /// What the clock of this machine says.
        now: String,
    },
    /// A cluster whose name can't be part of a certificate's.
    #[error(
        "cluster {0:?} can't have certificates: its name must be of a-z, 0-9, '-', and not begin or end with '-'"
    )]
    Cluster(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads the authority's certificate, one's own, and its key, from PEM files.
    ///
    /// # Errors
    /// [`CredentialsError`]: also when a certificate has expired, which others would not say.
    pub fn read(
        authority: impl AsRef<Path>,
        certificate: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Result<Credentials, CredentialsError> {
        let read = |path: &Path, what: &'static str| {
            let pem =
                descriptors::read(path).map_err(|error| CredentialsError::Read(path.to_owned(), error))?;
            let has = pem.split(|byte| *byte == b'\n').any(|line| {
                let line = line.trim_ascii_end();
                line.starts_with(b"-----BEGIN ")
                    && line.strip_suffix(b"-----").is_some_and(|l| l.ends_with(what.as_bytes()))
            });
            if has { Ok(pem) } else { Err(CredentialsError::NoPem { path: path.to_owned(), what }) }
        };
        let pem = Pem {
            authority: read(authority.as_ref(), "CERTIFICATE")?,
            certificate: read(certificate.as_ref(), "CERTIFICATE")?,
            key: read(key.as_ref(), "PRIVATE KEY")?,
        };
        is_valid(authority.as_ref(), &pem.authority)?;
        is_valid(certificate.as_ref(), &pem.certificate)?;
        Ok(Credentials(Arc::new(pem)))
    }

    fn identity(&self) -> Identity {
        Identity::from_pem(&self.0.certificate, &self.0.key)
    }

    fn authority(&self) -> Certificate {
        Certificate::from_pem(&self.0.authority)
    }

    /// Whom its certificate names.
    pub(crate) fn peer(&self, cluster: &str) -> Option<Peer> {
        let blocks = Block::iter_from_buffer(&self.0.certificate).filter_map(Result::ok);
        let block = blocks.into_iter().find(|block| block.label == "CERTIFICATE")?;
        Peer::of(cluster, &block.contents)
    }

    /// Of whoever connects; to a peer of this name, if it is not the one of the address.
    pub(crate) fn client(&self, name: Option<String>) -> ClientTlsConfig {
        let config = ClientTlsConfig::new().ca_certificate(self.authority()).identity(self.identity());
        // One that hangs accepts connections, and says nothing.
        let config = config.timeout(std::time::Duration::from_secs(2));
        name.into_iter().fold(config, ClientTlsConfig::domain_name)
    }

    /// Of somebody without a certificate, who knows those of this authority.
    pub(crate) fn nobody(&self) -> ClientTlsConfig {
        ClientTlsConfig::new().ca_certificate(self.authority())
    }

    /// Of somebody with another's certificate, who knows those of this authority.
    pub(crate) fn client_as(&self, other: &Credentials) -> ClientTlsConfig {
        self.nobody().identity(other.identity())
    }

    /// Of whoever is connected to, by those only that have a certificate too.
    ///
    /// # Errors
    /// What of them can't be used, for people.
    pub(crate) fn server(&self) -> Result<TlsAcceptor, String> {
        self.acceptor().map_err(|error| error.to_string())
    }

    fn acceptor(&self) -> Result<TlsAcceptor, Box<dyn std::error::Error>> {
        let Pem { authority, certificate, key } = &*self.0;
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        let authorities: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(authority).collect();
        roots.add_parsable_certificates(authorities?);
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build()?;
        let own: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate).collect();
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_client_cert_verifier(clients);
        let mut config = config.with_single_cert(own?, PrivateKeyDer::from_pem_slice(key)?)?;
        config.alpn_protocols.push(b"h2".to_vec());
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

/// That a file's first certificate can be used today.
fn is_valid(path: &Path, pem: &[u8]) -> Result<(), CredentialsError> {
    let damaged = |error: String| CredentialsError::Damaged(path.to_owned(), error);
    let block =
        Block::iter_from_buffer(pem).find(|block| block.as_ref().is_ok_and(|b| b.label == "CERTIFICATE"));
    let block = block.ok_or_else(|| damaged("the certificate is damaged".into()))?;
    let block = block.map_err(|error| damaged(error.to_string()))?;
    let certificate = block.parse_x509().map_err(|error| damaged(error.to_string()))?;
    let validity = certificate.validity();
    if validity.is_valid() {
        return Ok(());
    }
    let (from, until) = (validity.not_before.to_string(), validity.not_after.to_string());
    let now = x509_parser::time::ASN1Time::now().to_string();
    Err(CredentialsError::NotValid { path: path.to_owned(), from, until, now })
}

/// The name in a node's certificate.
pub fn node_name(cluster: &str, node: u64) -> String {
    format!("node-{node}.{cluster}")
}

/// The name in a user's certificate.
pub fn user_name(cluster: &str, user: &str) -> String {
    format!("{user}.user.{cluster}")
}

/// Whether it can be part of a certificate's name: a cluster, or a user.
pub(crate) fn is_label(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !name.is_empty()
        && name.len() <= 63
        && name.chars().all(letters)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// Who is at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// Another node of the cluster.
    Node(Node),
    /// A user's program.
    User(String),
}

impl Peer {
    /// Whom a certificate names, of those that its authority has signed.
    pub(crate) fn of(cluster: &str, certificate: &[u8]) -> Option<Peer> {
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok()??;
        names.value.general_names.iter().find_map(|name| match name {
            GeneralName::DNSName(name) => Peer::named(cluster, name),
            _ => None,
        })
    }

    fn named(cluster: &str, name: &str) -> Option<Peer> {
        let own = name.strip_suffix(cluster)?.strip_suffix('.')?;
        if let Some(user) = own.strip_suffix(".user") {
            return is_label(user).then(|| Peer::User(user.to_owned()));
        }
        // As it is written by `node_name`, and not otherwise.
        let number = own.strip_prefix("node-")?.parse().ok()?;
        (node_name(cluster, number) == name).then_some(Peer::Node(Node(number)))
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Peer::Node(node) => write!(f, "node {}", node.0),
            Peer::User(user) => write!(f, "user {user:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_nodes_and_users_of_the_cluster() {
        let node = |number| Some(Peer::Node(Node(number)));
        assert_eq!(Peer::named("bank", &node_name("bank", 3)), node(3));
        let alice = Peer::named("bank", &user_name("bank", "alice"));
        assert_eq!(alice, Some(Peer::User("alice".into())));
        for other in [
            "node-3.bankers",
            "node-3.tbank",
            "node-03.bank",
            "node-+3.bank",
            "node-.bank",
            "node-3",
            "bank",
            ".bank",
            "node-3.user.shop",
            ".user.bank",
            "al.ice.user.bank",
            "*.user.bank",
            "-.user.bank",
            "user.bank",
        ] {
            assert_eq!(Peer::named("bank", other), None, "{other}");
        }
        // A user may be called like a node, and is none.
        assert_eq!(Peer::named("bank", "node-3.user.bank"), Some(Peer::User("node-3".into())));
    }

    #[test]
    fn what_is_no_certificate_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.pem");
        let read = || Credentials::read(&path, &path, &path).unwrap_err().to_string();
        assert!(read().contains("x.pem: No such file"), "{}", read());
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\r\n").unwrap();
        assert!(read().contains("x.pem has no PRIVATE KEY"), "{}", read());
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n").unwrap();
        assert!(read().contains("x.pem: the certificate is damaged"), "{}", read());
    }
}
