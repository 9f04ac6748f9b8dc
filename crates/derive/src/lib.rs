//! `#[derive(Recoverable)]`: see `caliburn::Recoverable`. For a struct it generates
//!
//! * `Recoverable`, which records names and offsets of the fields;
//! * `NAMEFields`, guards of the fields (`guard.fields()`), as visible as the fields are;
//! * `NAMEInit`, a struct whose fields may be what the real ones can be made of (`&str` for a `PString`).
//!
//! `#[recoverable(default)]`, `#[recoverable(default = EXPRESSION)]` and `#[recoverable(was = "NAME")]` say of a
//! field (the last one of a variant, too) how it is made of what an older type had; `#[recoverable(gone("NAME"))]`
//! says of the type or of a variant what it had and may lose. The expression is a safe function of its own: it sees
//! nothing of what is generated, and is in no unsafe block.
//!
//! For an enum `NAMEFields` is an enum, with guards of the fields of each variant.

mod enums;
mod made;

use enums::of_enum;
use made::{Of, Said, defaults_of, loads, said_of};
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned;
use syn::visit_mut::VisitMut;
use syn::{Data, DeriveInput, Error, Fields, Generics, Ident, Type, parse_macro_input, parse_quote};

/// Lets values of the type live in a store. See `caliburn::Recoverable`.
#[proc_macro_derive(Recoverable, attributes(recoverable))]
pub fn recoverable(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let mut input = parse_macro_input!(input as DeriveInput);
    let (_, arguments, _) = input.generics.split_for_impl();
    let mut named = Named { name: input.ident.clone(), arguments: quote!(#arguments) };
    named.visit_data_mut(&mut input.data);
    derive(&input).unwrap_or_else(Error::into_compile_error).into()
}

/// What `#[repr(...)]` says.
#[derive(Default)]
struct Repr {
    c: bool,
    transparent: bool,
    packed: bool,
    tag: Option<Ident>,
}

fn repr(input: &DeriveInput) -> Result<Repr, Error> {
    let mut repr = Repr::default();
    for attribute in input.attrs.iter().filter(|attribute| attribute.path().is_ident("repr")) {
        attribute.parse_nested_meta(|meta| {
            let name = meta.path.require_ident()?;
            match name.to_string().as_str() {
                "C" => repr.c = true,
                "transparent" => repr.transparent = true,
                "packed" => repr.packed = true,
                "u8" | "u16" | "u32" | "u64" | "i8" | "i16" | "i32" | "i64" => repr.tag = Some(name.clone()),
                _ => {}
            }
            if meta.input.peek(syn::token::Paren) {
                let inner;
                syn::parenthesized!(inner in meta.input);
                inner.parse::<TokenStream>()?;
            }
            Ok(())
        })?;
    }
    Ok(repr)
}

fn derive(input: &DeriveInput) -> Result<TokenStream, Error> {
    if let Some(lifetime) = input.generics.lifetimes().next() {
        let text = "a type in a store holds no references: they mean nothing in another process";
        return Err(Error::new(lifetime.span(), text));
    }
    let repr = repr(input)?;
    if repr.packed {
        let text = "a packed type cannot live in a store: its fields would not be aligned";
        return Err(Error::new(input.ident.span(), text));
    }
    match &input.data {
        Data::Struct(data) => {
            if !repr.c && !repr.transparent {
                let text = "add #[repr(C)]: in a store a layout must be fixed, and the compiler is free to change that of \
                            a Rust struct";
                return Err(Error::new(input.ident.span(), text));
            }
            of_struct(input, &data.fields)
        }
        Data::Enum(data) => {
            let Some(tag) = repr.tag else {
                let text = "add #[repr(u8)] (or u16, u32): in a store a layout must be fixed, and the compiler is free to \
                            change that of a Rust enum";
                return Err(Error::new(input.ident.span(), text));
            };
            if repr.c {
                let text = "#[repr(C, u8)] puts the fields elsewhere than #[repr(u8)], which is what is recorded: leave C out";
                return Err(Error::new(input.ident.span(), text));
            }
            if data.variants.is_empty() {
                return Err(Error::new(
                    input.ident.span(),
                    "an enum without variants has no values to live in a store",
                ));
            }
            of_enum(input, data, &tag)
        }
        Data::Union(_) => {
            let text =
                "a union cannot live in a store: nothing says which of its fields is there; use an enum";
            Err(Error::new(input.ident.span(), text))
        }
    }
}

/// Where errors about a type are shown; names mean what they mean in what is generated, also where the type comes
/// out of a macro.
pub(crate) fn place_of(of: &Type) -> Span {
    of.span().resolved_at(Span::call_site())
}

/// The generics with `Recoverable` for each type.
pub(crate) fn bounded(generics: &Generics) -> Generics {
    let mut generics = generics.clone();
    for parameter in generics.type_params_mut() {
        parameter.bounds.push(parse_quote!(::caliburn::typed::Recoverable));
    }
    generics
}

/// The name of a field: its own, or its number.
pub(crate) fn member(index: usize, field: &syn::Field) -> (syn::Member, String) {
    match &field.ident {
        Some(name) => (name.clone().into(), name.to_string().trim_start_matches("r#").to_owned()),
        None => (index.into(), index.to_string()),
    }
}

/// `<A as Recoverable>::Pointers` of all types, joined.
pub(crate) fn pointers<'t>(types: impl Iterator<Item = &'t Type>) -> TokenStream {
    types.fold(quote!(::caliburn::typed::No), |before, of| {
        quote_spanned! {place_of(of)=>
            <#before as ::caliburn::typed::Answer>::Or<<#of as ::caliburn::typed::Recoverable>::Pointers>
        }
    })
}

/// The parameters of the type as they are written behind its name, at run time.
pub(crate) fn parameters_of(input: &DeriveInput) -> TokenStream {
    let parameters: Vec<TokenStream> = input
        .generics
        .params
        .iter()
        .filter_map(|parameter| match parameter {
            syn::GenericParam::Type(of) => {
                let of = &of.ident;
                Some(quote!(types.name_of::<#of>()))
            }
            syn::GenericParam::Const(value) => {
                let value = &value.ident;
                Some(quote!(::caliburn::typed::Types::constant(&#value)))
            }
            syn::GenericParam::Lifetime(_) => None,
        })
        .collect();
    if parameters.is_empty() {
        return quote!(::std::string::String::new());
    }
    quote!(::std::format!("<{}>", [#(#parameters),*].join(", ")))
}

/// Says the type's name where a field's type says `Self`, which means something else in what is generated.
struct Named {
    name: Ident,
    arguments: TokenStream,
}

impl VisitMut for Named {
    fn visit_type_mut(&mut self, of: &mut Type) {
        syn::visit_mut::visit_type_mut(self, of);
        if let Type::Path(path) = &*of
            && path.qself.is_none()
            && path.path.is_ident("Self")
        {
            let (name, arguments) = (&self.name, &self.arguments);
            *of = parse_quote!(#name #arguments);
        }
    }
}

/// What refuses `Drop`: a value in a store is not dropped, it is freed.
pub(crate) fn not_drop(input: &DeriveInput, generics: &Generics) -> TokenStream {
    let name = &input.ident;
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    quote! {
        const _: () = {
            #[allow(dead_code, drop_bounds)]
            trait TypesInAStoreDoNotImplementDrop {}
            #[allow(drop_bounds)]
            impl<T: ::std::ops::Drop> TypesInAStoreDoNotImplementDrop for T {}
            impl #impl_generics TypesInAStoreDoNotImplementDrop for #name #type_generics #bounds {}
        };
    }
}

fn of_struct(input: &DeriveInput, fields: &Fields) -> Result<TokenStream, Error> {
    let name = &input.ident;
    let generics = bounded(&input.generics);
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    let types: Vec<&Type> = fields.iter().map(|field| &field.ty).collect();
    let (members, names): (Vec<_>, Vec<_>) =
        fields.iter().enumerate().map(|(i, field)| member(i, field)).unzip();
    let pointers = pointers(types.iter().copied());
    let (base, parameters) = (name.to_string(), parameters_of(input));
    let stores = types.iter().zip(&members).map(|(of, member)| {
        quote_spanned! {place_of(of)=>
            <#of as ::caliburn::typed::Recoverable>::store(&raw const (*from).#member, &raw mut (*to).#member);
        }
    });
    let places: Vec<TokenStream> = members.iter().map(|member| quote!(&raw mut (*to).#member)).collect();
    let gone = Said::of(&base, &input.attrs, Of::Type)?;
    let loads = loads(&base, "", fields, &places, &gone.gone)?;
    let (takes, makes, defaults) = (loads.takes, loads.makes, defaults_of(input, &loads.defaults));
    let mut absorbs = Vec::new();
    let said = said_of(fields)?;
    for ((Said { names, .. }, of), member) in said.iter().zip(&types).zip(&members) {
        absorbs.push(quote! {
            ::std::option::Option::Some(#(#names)|*) => <#of as ::caliburn::typed::Recoverable>::absorb(
                &raw mut (*this).#member, &path[1..], piece, loader
            ),
        });
    }
    if let names @ [_, ..] = &gone.gone[..] {
        absorbs.push(quote!(::std::option::Option::Some(#(#names)|*) => {}));
    }
    let (of_fields, of_gone) = (said.iter().map(Said::of_field), gone.of_gone());
    let init_self = init_of_self(input);
    let not_drop = not_drop(input, &generics);
    let guards = guards_of_struct(input, fields);
    let init = init_struct(input, fields);
    Ok(quote! {
        #[automatically_derived]
        // SAFETY: its layout is fixed, its fields may live in a store, and each is told what the whole is told.
        unsafe impl #impl_generics ::caliburn::typed::Recoverable for #name #type_generics #bounds {
            type Pointers = #pointers;
            type Borrowed = Self;
            const PADDED: bool = #(<#types as ::caliburn::typed::Recoverable>::PADDED ||)*
                ::std::mem::size_of::<Self>() > 0 #(+ ::std::mem::size_of::<#types>())*;

            fn describe(types: &mut ::caliburn::typed::Types) -> ::std::string::String {
                let parameters = #parameters;
                types.define::<Self>("struct", #base, &parameters, |definition| {
                    #(definition.field::<#types>(#names, ::std::mem::offset_of!(Self, #members)); #of_fields)*
                    #of_gone
                    let _ = definition;
                })
            }

            #[inline]
            #[allow(unused_variables, unused_unsafe)]
            unsafe fn store(from: *const Self, to: *mut Self) {
                unsafe {
                    if !<Self as ::caliburn::typed::Recoverable>::PADDED {
                        return ::std::ptr::copy_nonoverlapping(from, to, 1);
                    }
                    #(#stores)*
                }
            }

            #[inline]
            #[allow(unused_variables, unused_unsafe)]
            unsafe fn moved(this: *mut Self, by: isize) {
                unsafe { #(<#types as ::caliburn::typed::Recoverable>::moved(&raw mut (*this).#members, by);)* }
            }

            #[inline]
            #[allow(unused_variables, unused_unsafe)]
            unsafe fn free(this: *mut Self, tx: ::caliburn::typed::Tx<'_>) {
                unsafe { #(<#types as ::caliburn::typed::Recoverable>::free(&raw mut (*this).#members, tx);)* }
            }

            #[allow(unused_variables, unused_mut, unused_unsafe)]
            unsafe fn load(
                from: ::caliburn::typed::Datum, to: *mut Self, loader: &::caliburn::typed::Loader<'_, '_>
            ) {
                let mut fields = ::caliburn::typed::Loader::fields(loader, from);
                #takes
                unsafe { #makes }
            }

            #[allow(unused_variables, unused_unsafe)]
            unsafe fn absorb(
                this: *mut Self,
                path: &[::std::string::String],
                piece: ::caliburn::typed::Piece,
                loader: &::caliburn::typed::Loader<'_, '_>,
            ) {
                unsafe {
                    match path.first().map(::std::string::String::as_str) {
                        #(#absorbs)*
                        ::std::option::Option::Some(other) => {
                            ::caliburn::typed::Loader::untaken(loader, #base, other)
                        }
                        ::std::option::Option::None => ::caliburn::typed::replace(this, path, piece, loader),
                    }
                }
            }
        }
        #defaults
        #init_self
        #guards
        #init
        #not_drop
    })
}

/// A value with pointers is empty while it is outside of a store, so any value can be put into one as it is.
pub(crate) fn init_of_self(input: &DeriveInput) -> TokenStream {
    let name = &input.ident;
    let plain = bounded(&input.generics);
    let mut generics = plain.clone();
    generics.params.insert(0, parse_quote!('caliburn));
    let (impl_generics, _, bounds) = generics.split_for_impl();
    let (_, type_generics, _) = plain.split_for_impl();
    quote! {
        #[automatically_derived]
        // SAFETY: the value is stored; what it could own is empty outside of a store.
        unsafe impl #impl_generics ::caliburn::typed::Init<'caliburn, Self> for #name #type_generics #bounds {
            #[inline]
            unsafe fn init(self, to: *mut Self, _tx: ::caliburn::typed::Tx<'caliburn>) {
                let this = ::std::mem::ManuallyDrop::new(self);
                unsafe { <Self as ::caliburn::typed::Recoverable>::store(&*this, to) }
            }
        }
    }
}

/// The generics of guards: two lifetimes more.
pub(crate) fn guard_generics(generics: &Generics) -> Generics {
    let mut generics = bounded(generics);
    generics.params.insert(0, parse_quote!('id));
    generics.params.insert(0, parse_quote!('a));
    generics
}

fn guards_of_struct(input: &DeriveInput, fields: &Fields) -> TokenStream {
    let (name, visibility) = (&input.ident, &input.vis);
    let guards = format_ident!("{}Fields", name);
    let generics = bounded(&input.generics);
    let (impl_generics, type_generics, bounds) = generics.split_for_impl();
    let with_lifetimes = guard_generics(&input.generics);
    let (_, guard_type, guard_bounds) = with_lifetimes.split_for_impl();
    let text = format!("Guards of the fields of a [`{name}`].");
    let parts = fields.iter().enumerate().map(|(i, field)| {
        let (member, field_name) = member(i, field);
        let (of, visibility, text) = (&field.ty, &field.vis, format!("A guard of `{field_name}`."));
        let kind = quote!(::caliburn::typed::Mut<'a, 'id, #of>);
        match &field.ident {
            Some(_) => quote!(#[doc = #text] #visibility #member: #kind),
            None => quote!(#[doc = #text] #visibility #kind),
        }
    });
    let members: Vec<syn::Member> = fields.iter().enumerate().map(|(i, field)| member(i, field).0).collect();
    let hold = unused(&input.generics);
    let body = match fields {
        Fields::Named(_) => quote!({ #(#parts,)* #[doc(hidden)] __caliburn_holds: #hold }),
        _ => quote!((#(#parts,)* #[doc(hidden)] #hold) #guard_bounds;),
    };
    let last: syn::Member = match fields {
        Fields::Named(_) => format_ident!("__caliburn_holds").into(),
        _ => members.len().into(),
    };
    let definition = match fields {
        Fields::Named(_) => quote!(#visibility struct #guards #with_lifetimes #guard_bounds #body),
        _ => quote!(#visibility struct #guards #with_lifetimes #body),
    };
    quote! {
        #[doc = #text]
        #[allow(dead_code, deprecated, non_camel_case_types, non_snake_case)]
        #definition
        #[automatically_derived]
        impl #impl_generics ::caliburn::typed::Fields for #name #type_generics #bounds {
            type Of<'a, 'id> = #guards #guard_type;

            #[inline(always)]
            #[allow(unused_variables)]
            fn of<'a, 'id>(
                value: ::caliburn::typed::Mut<'a, 'id, Self>
            ) -> <Self as ::caliburn::typed::Fields>::Of<'a, 'id> {
                let (at, tx) = (::caliburn::typed::Mut::as_ptr(&value), ::caliburn::typed::Mut::tx(&value));
                #guards {
                    // SAFETY: the fields are apart, each in the value that the guard has alone.
                    #(#members: unsafe { ::caliburn::typed::Mut::new(&raw mut (*at).#members, tx) },)*
                    #last: ::std::marker::PhantomData,
                }
            }
        }
    }
}

/// Uses all parameters of a type with guards, whatever its fields are.
pub(crate) fn unused(generics: &Generics) -> TokenStream {
    let types = generics.type_params().map(|parameter| &parameter.ident);
    quote!(::std::marker::PhantomData<(&'a (), &'id (), #(#types,)*)>)
}

/// A struct of what the fields can be made of.
fn init_struct(input: &DeriveInput, fields: &Fields) -> TokenStream {
    if fields.is_empty() {
        return TokenStream::new();
    }
    let (name, visibility) = (&input.ident, &input.vis);
    let init = format_ident!("{}Init", name);
    let made: Vec<Ident> = (0..fields.len()).map(|i| format_ident!("__Made{i}")).collect();
    let text =
        format!("What a [`{name}`] in a store can be made of: fields of what its fields can be made of.");
    let members: Vec<syn::Member> = fields.iter().enumerate().map(|(i, field)| member(i, field).0).collect();
    let parts = fields.iter().zip(&made).map(|(field, made)| {
        let visibility = &field.vis;
        match &field.ident {
            Some(name) => quote!(#[allow(missing_docs)] #visibility #name: #made),
            None => quote!(#[allow(missing_docs)] #visibility #made),
        }
    });
    let definition = match fields {
        Fields::Named(_) => quote!(#visibility struct #init<#(#made),*> { #(#parts),* }),
        _ => quote!(#visibility struct #init<#(#made),*>(#(#parts),*);),
    };
    let plain = bounded(&input.generics);
    let (_, type_generics, _) = plain.split_for_impl();
    let mut generics = plain.clone();
    for (made, field) in made.iter().zip(fields) {
        let of = &field.ty;
        generics.params.push(parse_quote!(#made: ::caliburn::typed::Init<'caliburn, #of>));
    }
    generics.params.insert(0, parse_quote!('caliburn));
    let (impl_generics, _, bounds) = generics.split_for_impl();
    quote! {
        #[doc = #text]
        #[derive(Debug)]
        #[allow(dead_code, deprecated, non_camel_case_types, non_snake_case)]
        #definition
        #[automatically_derived]
        // SAFETY: each field is made.
        unsafe impl #impl_generics ::caliburn::typed::Init<'caliburn, #name #type_generics> for #init<#(#made),*> #bounds {
            #[inline]
            unsafe fn init(self, to: *mut #name #type_generics, tx: ::caliburn::typed::Tx<'caliburn>) {
                unsafe { #(::caliburn::typed::Init::init(self.#members, &raw mut (*to).#members, tx);)* }
            }
        }
    }
}
