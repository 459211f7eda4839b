// Whose page this is. Tabs share one cookie: what a page asks for is refused once somebody else is logged in with it.
export const { caller } = document.body.dataset;

export const ofCaller = caller ? { "x-page-of": caller } : {};
