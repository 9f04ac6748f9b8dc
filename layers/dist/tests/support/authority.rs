//! An authority that makes certificates for tests.

use caliburn_dist::credentials::Credentials;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use std::path::{Path, PathBuf};

pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    dir: PathBuf,
}

impl Authority {
    /// Keeps what it makes in a directory.
    pub fn new(dir: &Path) -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("authority.pem"), issuer.pem()).unwrap();
        Authority { issuer, dir: dir.to_owned() }
    }

    /// Files of a certificate with these names: the authority's, its own, its key.
    pub fn files(&self, names: &[String], until: i32) -> [PathBuf; 3] {
        let mut params = CertificateParams::new(names).unwrap();
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(until, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let file = |kind: &str| self.dir.join(format!("{}.{kind}", names[0]));
        std::fs::write(file("pem"), certificate.pem()).unwrap();
        std::fs::write(file("key"), key.serialize_pem()).unwrap();
        [self.dir.join("authority.pem"), file("pem"), file("key")]
    }

    pub fn credentials(&self, name: impl Into<String>) -> Credentials {
        let [authority, certificate, key] = self.files(&[name.into()], 2900);
        Credentials::read(authority, certificate, key).unwrap()
    }
}
