//! An authority: signs certificates, and the list of those that it has revoked.

use super::files::{self, CA, CA_KEY, CRL, Certificate, Directory, Issued, Made, stem};
use crate::failure::{Failure, because};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SanType, SerialNumber,
};
use time::{Duration, OffsetDateTime};

/// Possible lag of clocks of other hosts.
const CLOCK_SKEW: Duration = Duration::minutes(10);
/// Time until the promised next list: Kennel servers do not refuse an older one, other programs may.
const LIST_FOR: Duration = Duration::days(3650);
const SERIAL_BYTES: usize = 16;
/// Longest common name of a certificate, as X.520 has it.
const COMMON_NAME_CHARS_MAX: usize = 64;

/// Kind of the certificate's owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Server,
    Client,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }

    fn usage(self) -> ExtendedKeyUsagePurpose {
        match self {
            Self::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Self::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }
    }
}

pub(super) struct Authority {
    pub(super) dir: Directory,
    issuer: Issuer<'static, KeyPair>,
}

/// Makes an authority with an empty list.
pub(super) fn init(dir: &Directory, until: OffsetDateTime, force: bool) -> Result<Made, Failure> {
    dir.check([CA, CA_KEY, CRL], force)?;
    // Certificates of two authorities with one name would look alike.
    let name = format!("Kennel CA {}", hex::encode(files::random::<4>()?));
    let mut params = params(&name);
    params.serial_number = Some(serial()?);
    params.not_before = OffsetDateTime::now_utc() - CLOCK_SKEW;
    params.not_after = until;
    let key = KeyPair::generate().map_err(because("cannot make a key"))?;
    let certificate = params
        .self_signed(&key)
        .map_err(because("cannot sign a certificate"))?;
    let key_text = key.serialize_pem();
    // Certificates of an earlier authority do not belong to this one.
    let issued = Issued {
        authority: name,
        ..Issued::default()
    };
    let list = list(&issued, &Issuer::new(params, key))?;
    dir.set_issued(&issued)?;
    dir.write(
        &[(CA_KEY, &key_text), (CA, &certificate.pem()), (CRL, &list)],
        force,
    )
}

/// Returns the parameters shared by the certificate of an authority and all that it signs.
fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    pub(super) fn open(dir: Directory) -> Result<Self, Failure> {
        let key = KeyPair::from_pem(&dir.read(CA_KEY)?)
            .map_err(because(format_args!("cannot use {CA_KEY}")))?;
        let name = dir.issued()?.authority;
        if name.is_empty() {
            return Err(Failure::new(
                "this authority was not made by kennel certs init",
            ));
        }
        let issuer = Issuer::new(params(&name), key);
        Ok(Self { dir, issuer })
    }

    /// Signs a certificate with a key of its own. In another directory than the authority's it is not listed.
    pub(super) fn issue(
        &self,
        kind: Kind,
        name: &str,
        sans: Vec<SanType>,
        until: OffsetDateTime,
        (out, force): (Option<&Directory>, bool),
    ) -> Result<Made, Failure> {
        let stem = stem(name)?;
        let dir = out.unwrap_or(&self.dir);
        let (certificate_file, key_file) = (format!("{stem}.pem"), format!("{stem}-key.pem"));
        dir.check([certificate_file.as_str(), key_file.as_str()], force)?;
        let serial = serial()?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let common_name: String = name.chars().take(COMMON_NAME_CHARS_MAX).collect();
        params
            .distinguished_name
            .push(DnType::CommonName, common_name);
        params.subject_alt_names = sans;
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![kind.usage()];
        params.use_authority_key_identifier_extension = true;
        params.not_before = OffsetDateTime::now_utc() - CLOCK_SKEW;
        params.not_after = until;
        params.serial_number = Some(serial.clone());
        let key = KeyPair::generate().map_err(because("cannot make a key"))?;
        let certificate = params
            .signed_by(&key, &self.issuer)
            .map_err(because("cannot sign a certificate"))?;
        if out.is_none() {
            // Recording comes first: every certificate that exists can be revoked.
            let mut issued = self.dir.issued()?;
            issued.certificates.push(Certificate {
                kind: kind.word().to_owned(),
                name: name.to_owned(),
                serial: hex::encode(serial.to_bytes()),
                expires: super::rfc3339(until)?,
                revoked: None,
            });
            self.dir.set_issued(&issued)?;
        }
        let files = [
            (certificate_file.as_str(), certificate.pem()),
            (key_file.as_str(), key.serialize_pem()),
        ];
        dir.write(
            &files.each_ref().map(|(name, text)| (*name, text.as_str())),
            force,
        )
    }

    /// Puts all certificates of a name on the list; returns their number.
    pub(super) fn revoke(&self, name: &str) -> Result<usize, Failure> {
        let mut issued = self.dir.issued()?;
        if !issued.certificates.iter().any(|one| one.name == name) {
            return Err(
                Failure::new(format!("no certificate of {name:?} was issued here"))
                    .hint("kennel certs ls DIR lists them"),
            );
        }
        let now = OffsetDateTime::now_utc().unix_timestamp();
        let mut count = 0;
        for one in issued
            .certificates
            .iter_mut()
            .filter(|one| one.name == name && one.revoked.is_none())
        {
            one.revoked = Some(now);
            count += 1;
        }
        // The list is written even if no certificate is new: an earlier command may have been interrupted.
        let list = list(&issued, &self.issuer)?;
        self.dir.set_issued(&issued)?;
        self.dir.write(&[(CRL, &list)], true)?;
        Ok(count)
    }
}

/// Builds the list of all revoked certificates. Its number follows the clock, so that each is above the earlier one.
fn list(issued: &Issued, signer: &Issuer<'_, KeyPair>) -> Result<String, Failure> {
    let now = OffsetDateTime::now_utc();
    let revoked = issued.certificates.iter().filter_map(|one| {
        Some(RevokedCertParams {
            serial_number: SerialNumber::from_slice(&hex::decode(&one.serial).ok()?),
            revocation_time: OffsetDateTime::from_unix_timestamp(one.revoked?).ok()?,
            reason_code: None,
            invalidity_date: None,
        })
    });
    let params = CertificateRevocationListParams {
        this_update: now - CLOCK_SKEW,
        next_update: now + LIST_FOR,
        crl_number: SerialNumber::from(now.unix_timestamp().unsigned_abs()),
        issuing_distribution_point: None,
        revoked_certs: revoked.collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    let list = params
        .signed_by(signer)
        .map_err(because("cannot sign the list of revoked certificates"))?;
    list.pem()
        .map_err(because("cannot write the list of revoked certificates"))
}

/// Returns a positive number of as many bytes as it is written with.
fn serial() -> Result<SerialNumber, Failure> {
    let mut bytes = files::random::<SERIAL_BYTES>()?;
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}
